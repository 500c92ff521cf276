"""The comparison itself: a plan that fits the budget, and jobs that survive an interruption."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from regard import __version__, catalog, specs
from regard.core.errors import ConfigError, DataError
from regard.files.checksums import sealed
from regard.files.folders import write_json, writing
from regard_lab.benchmark import job_files, jobs, plan, references, sweep, trainings
from regard_lab.benchmark.budget import Budget, Clock
from regard_lab.benchmark.config import BaselineKind, CompareConfig, seconds
from regard_lab.benchmark.language import said
from regard_lab.benchmark.measures import TASKS, Measure, check_settings, chosen, taken
from regard_lab.benchmark.quality import STEP_TURNS_SECONDS, step_timings
from regard_lab.benchmark.results import Expected, Speeds, assemble
from regard_lab.tasks import Task, build_task
from regard_lab.tasks.token_store import is_store
from regard_lab.training import network

PASS_SECONDS = 120.0
"""most seconds for one pass of a sweep, without a budget"""
Tell = Callable[[str], None]


def compare(
    config: CompareConfig, out: Path, *, tell: Tell = lambda line: None, clock: Clock = time.perf_counter
) -> dict[str, Any]:
    """Measure everything that `config` asks for; results are written to `out/results.json` and returned.

    A comparison that was interrupted goes on where it stopped: finished jobs are read back, unfinished trainings go on
    from their checkpoint.

    Args:
        config: the comparison.
        out: folder of the comparison.
        tell: called with lines for a person: the plan, and each job as it ends.
        clock: seconds that pass, of which a budget is made.

    Raises:
        ConfigError: an unknown mechanism or option, sizes that do not fit, a budget that nothing fits into, or `out`
            holds something else. Nothing is written then.
        DataError: texts or images that are missing, or too small for the windows and splits asked for.
        ResourceError: a folder that cannot be written.
        UnsupportedError: a mechanism that cannot do the task.
        NumericsError: every specification diverged, or a baseline did.
        CheckpointError: a damaged file in `out`.
    """
    budget = Budget(None if config.budget is None else seconds(config.budget), clock)
    task = _possible(config, out)
    _claim(config, out, task, _enough(config, TASKS[task][0]))
    expected = _plan(config, out, task, budget, tell)
    notes = plan.told(config, expected, task)
    config, measures = plan.fitted(config, expected, task), taken(task, expected.steps)
    budget.expect(expected.seconds)
    quality, diverged = trainings.made(config, out, measures, expected, budget, tell)
    speeds = _speeds(config, out, measures[0], expected, budget, tell)
    costs = _costs(config, out, measures[0], expected, budget, tell)
    rows = _references(config, out, measures[0], expected, speeds, budget, tell)
    results = assemble(config, task, expected, quality, speeds, costs, rows, notes, diverged)
    write_json(out / "results.json", sealed(results))
    return results


def _possible(config: CompareConfig, out: Path) -> str:
    """The task; specifications that cannot be built, or cannot do it, are refused before anything is written."""
    if is_store(config.text.corpus):
        raise ConfigError(
            f"{config.text.corpus} is a token store, and a comparison also measures n-grams and xz, which read all "
            "text into memory: give it a part of the text that the store was built of"
        )
    for part in config.mechanisms:
        for piece in [inner for inner, _ in catalog.parts(part)] or [part]:
            if not specs.is_path(piece) and not catalog.resolve(piece)[0].__module__.startswith("regard."):
                raise ConfigError(
                    f"{piece!r} is registered in this process only, and a comparison trains in processes of its own; "
                    "name it by its import path, module:Class"
                )
    task = chosen(config, {part: catalog.describe(part) for part in config.mechanisms})
    check_settings(config, task)
    for spec in config.specs:
        for measure in TASKS[task]:
            model = jobs.job(config, out, measure, spec, 0, 1).model
            assert not isinstance(model, jobs.BaselineConfig)
            network.build(model, classes=2 if measure.name == "classification" else 0)
    timed = _sweep(config, TASKS[task][0])
    for part in config.mechanisms:
        timed.build(part)
    return task


def _enough(config: CompareConfig, measure: Measure) -> Task:
    """The data; too little to tell mechanisms apart is refused before anything is trained."""
    prefix = "--classification." if measure.name == "classification" else "--text."
    try:
        task = build_task(measure.task(config))
    except DataError as error:
        raise DataError(str(error).replace("--task.", prefix)) from error  # what a comparison calls these options
    count, batch = len(task.examples("train")), measure.option(config, "batch_size")
    if count < batch and measure.causal:
        raise DataError(
            f"{config.text.corpus} has {count} training windows of {config.text.length} tokens, fewer than one batch "
            f"of {batch}; use more text, a smaller --text.length or a smaller --batch-size"
        )
    if count < batch:
        raise DataError(
            f"there are {count} training examples, fewer than one batch of {batch}; give more data, or a smaller "
            f"--{measure.name}-batch-size"
        )
    return task


def _claim(config: CompareConfig, out: Path, task: str, data: Task) -> None:
    """Make the folder this comparison's, or refuse one that holds another comparison."""
    described = {**asdict(config), "task": task, "data": data.fingerprint, "version": __version__}
    settings = json.loads(json.dumps(described))
    path = out / "comparison.json"
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        empty = not any(out.iterdir())
    if path.exists():
        written = job_files.read(path, "choose another --out, or remove that folder")
        if written != settings:
            changed = sorted(name for name in settings if settings[name] != written.get(name))
            raise ConfigError(
                f"{out} holds a comparison with other settings ({', '.join(changed)}); "
                "choose another --out, or remove that folder"
            )
    elif empty:
        write_json(path, sealed(settings))
    else:
        raise ConfigError(f"{out} is not empty and holds no comparison; choose another --out")


def _plan(config: CompareConfig, out: Path, task: str, budget: Budget, tell: Tell) -> Expected:
    """The plan, made or read back. A comparison that does not fit its budget leaves no folder behind."""
    beside = _beside(config, TASKS[task][0])

    def make() -> dict[str, Any]:
        return asdict(plan.planned(config, task, out, beside, budget, tell))

    try:
        found = job_files.kept(out, "plan", make, tell, "plan")
    except ConfigError:
        (out / "comparison.json").unlink()
        with suppress(OSError):  # which was there before, or holds what is not ours
            out.rmdir()
        raise
    expected = Expected(**found)
    measures = taken(task, expected.steps)
    expected = replace(expected, steps={measure.name: expected.steps[measure.name] for measure in measures})
    first, *others = (f"{expected.steps[measure.name]} {{}}on {measure.subject}" for measure in measures)
    tell(
        f"expected: {expected.minutes:.1f} minutes, {expected.peak_bytes / 2**30:.1f} GiB of memory; "
        f"{len(config.specs)} specifications x {config.seeds} seeds, "
        f"{', '.join([first.format('steps '), *(other.format('') for other in others)])} each"
        + (f"; {', '.join(beside)} for as long" if beside else "")
    )
    for line in plan.told(config, expected, task):
        tell(said("en", line))
    return expected


def _beside(config: CompareConfig, measure: Measure) -> tuple[BaselineKind, ...]:
    """The baselines that are trained."""
    return config.baselines if measure.name == "classification" else ()


def _speeds(
    config: CompareConfig, out: Path, measure: Measure, expected: Expected, budget: Budget, tell: Tell
) -> Speeds:
    """The timing of a training step of everything that is trained, in turns in one process."""

    def make() -> dict[str, Any]:
        described = {spec: jobs.job(config, out, measure, spec, 0, 1) for spec in config.specs}
        beside = _beside(config, measure)
        described |= {references.timed_as(kind): jobs.baseline(config, out, kind, 0, 1) for kind in beside}
        share = budget.share("speed")
        limit = STEP_TURNS_SECONDS if share is None else min(max(share - expected.start, 0.0), STEP_TURNS_SECONDS)
        timings = step_timings(list(described.values()), threads=config.threads, budget_seconds=limit)
        return dict(zip(described, timings, strict=True))

    timings = job_files.kept(out, "speed", make, tell, "training steps, timed in turns")
    budget.done("speed")
    return timings


def _references(
    config: CompareConfig,
    out: Path,
    measure: Measure,
    expected: Expected,
    speeds: Speeds,
    budget: Budget,
    tell: Tell,
) -> list[dict[str, Any]]:
    """The rows beside the specifications."""
    steps, counting = expected.steps[measure.name], references.COUNTING[measure.name]
    if not counting:
        return []
    label = f"{counting} baselines"
    rows = job_files.kept(out, "baselines", lambda: references.counted(config, measure, steps), tell, label)
    budget.done("baselines")
    if not _beside(config, measure):
        return rows

    def of_baseline(name: str, make: Callable[[], Any], label: str) -> Any:
        found = job_files.kept(out, name, make, tell, label)
        budget.done(name)
        return found

    def share(name: str) -> float | None:
        given = budget.share(name)
        return None if given is None else max(given - expected.start - expected.after[measure.name], 0.0)

    return rows + references.trained(config, out, steps, speeds, of_baseline, share)


def _costs(
    config: CompareConfig, out: Path, measure: Measure, expected: Expected, budget: Budget, tell: Tell
) -> list[dict[str, Any]]:
    """The cost over length."""

    def make() -> list[dict[str, Any]]:
        share = budget.share("cost")
        limit = None if share is None else max(share - expected.start, 0.0)
        return [asdict(row) for row in sweep.sweep(_sweep(config, measure, limit=limit))]

    rows = job_files.kept(out, "cost", make, tell, "cost over length")
    budget.done("cost")
    return rows


def _sweep(config: CompareConfig, measure: Measure, *, limit: float | None = None) -> sweep.SweepConfig:
    """limit: seconds for all of it."""
    shape = measure.shape(config)
    passes = ("forward", "both", "decode") if measure.causal else ("forward", "both")
    return sweep.SweepConfig(
        specs=config.mechanisms,
        lengths=config.lengths,
        heads=shape.heads,
        key_dim=shape.dim // shape.heads,
        causal=measure.causal,
        passes=passes,
        rounds=config.rounds,
        seconds=PASS_SECONDS if limit is None else limit / len(passes),
        threads=config.threads,
    )
