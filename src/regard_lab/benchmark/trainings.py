"""The trainings of a comparison: those that diverge end their specification, and not the comparison."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from regard.core.errors import NumericsError, RegardError
from regard_lab.benchmark import job_files, jobs, plan
from regard_lab.benchmark.budget import Budget
from regard_lab.benchmark.config import CompareConfig
from regard_lab.benchmark.language import sentence
from regard_lab.benchmark.measures import Measure
from regard_lab.benchmark.quality import Job, run_apart
from regard_lab.benchmark.results import Expected

Tell = Callable[[str], None]
Results = dict[tuple[str, int, str], dict[str, Any]]
_DIVERGED = "diverged"
"""key of what a training said that diverged, in place of its results"""


def made(
    config: CompareConfig,
    out: Path,
    measures: Sequence[Measure],
    expected: Expected,
    budget: Budget,
    tell: Tell,
) -> tuple[Results, dict[str, dict[str, Any]]]:
    """The quality of every (specification, seed, measure), and what is to be said of specifications that diverged.

    The measures of one model share a process, the first one first: it is its peak memory that is reported. What
    diverged once is not trained again.

    Raises:
        NumericsError: every specification diverged.
    """
    results: Results = {}
    diverged: dict[str, dict[str, Any]] = {}
    for seed in range(config.seeds):
        for spec in config.specs:
            found = {} if spec in diverged else _of_model(config, out, measures, expected, budget, tell, spec, seed)
            for measure in measures:
                budget.done(plan.training(spec, measure.name, seed))
                if _DIVERGED in found.get(measure.name, ()):
                    diverged[spec] = _said(spec, seed, measure)
                    if len(diverged) == len(config.specs):
                        why = found[measure.name][_DIVERGED].partition(". ")[0]
                        raise NumericsError(
                            f"every specification diverged; the last, {spec}, in training on {measure.subject} with "
                            f"seed {seed}: {why}. Compare with a smaller learning rate"
                        )
            results |= {(spec, seed, name): result for name, result in found.items()}
    return results, diverged


def _said(spec: str, seed: int, measure: Measure) -> dict[str, Any]:
    text = "{spec} diverged in training on {subject} with seed {seed} and is left out; give a smaller learning rate"
    return sentence(text, spec=spec, subject=sentence(measure.subject), seed=seed)


def _of_model(
    config: CompareConfig,
    out: Path,
    measures: Sequence[Measure],
    expected: Expected,
    budget: Budget,
    tell: Tell,
    spec: str,
    seed: int,
) -> dict[str, dict[str, Any]]:
    """What the trainings of one model found, up to one that diverged, by the names of the measures."""
    described = {
        measure.name: jobs.job(config, out, measure, spec, seed, expected.steps[measure.name]) for measure in measures
    }
    files = {name: out / "jobs" / f"{Path(job.run).name}.json" for name, job in described.items()}
    results = {name: job_files.result(path) for name, path in files.items() if path.exists()}
    for name in results:
        budget.done(plan.training(spec, name, seed))
    missing = [name for name in files if name not in results]
    if missing and not any(_DIVERGED in result for result in results.values()):
        for name in missing:
            share = budget.share(plan.training(spec, name, seed))
            own = expected.after[name] + (expected.start if name == missing[0] else 0.0) if share else 0.0
            if share is not None:
                described[name] = replace(described[name], seconds=max(share - own, 0.0))
        ended = partial(_ended, budget, spec, seed)
        _train(described, files, missing, f"{spec}, seed {seed}", config.threads, tell, ended)
        results |= {name: job_files.result(files[name]) for name in missing if files[name].exists()}
    return results


def _ended(budget: Budget, spec: str, seed: int, name: str) -> None:
    budget.done(plan.training(spec, name, seed))


def _train(
    described: dict[str, Job],
    files: dict[str, Path],
    missing: list[str],
    label: str,
    threads: int,
    tell: Tell,
    ended: Callable[[str], None],
) -> None:
    """Run the missing jobs, up to one that diverges; each result is on disk as soon as it is there, and its name is
    told to `ended`.
    """
    left = list(missing)
    began = time.perf_counter()

    def keep(result: dict[str, Any]) -> None:
        nonlocal began
        name = left.pop(0)
        job_files.write(files[name], result)
        ended(name)
        tell(f"{label}, {name}: {time.perf_counter() - began:.0f} s")
        began = time.perf_counter()

    try:
        run_apart([described[name] for name in missing], threads=threads, each=keep)
    except NumericsError as error:
        job_files.write(files[left[0]], {_DIVERGED: str(error)})
        tell(f"{label}, {left[0]}: diverged")
    except RegardError as error:
        raise type(error)(f"{label}, {left[0]}: {error}") from error
