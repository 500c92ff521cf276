"""The comparison itself: a plan that fits the budget, and jobs that survive an interruption."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from regard import __version__, catalog, specs
from regard.benchmark import jobs, references, sweep
from regard.benchmark.config import BaselineKind, CompareConfig, seconds
from regard.benchmark.measures import TASKS, Measure, check_settings, chosen
from regard.benchmark.quality import Job, run_apart, step_timings
from regard.benchmark.results import Expected, Speeds, assemble
from regard.checksums import KEY, opened, sealed
from regard.errors import CheckpointError, ConfigError, DataError, RegardError, ResourceError
from regard.reading import content
from regard.tasks import Task, build_task
from regard.training import network
from regard.training.files import write_json, writing

PROBE_STEPS = 3
"""steps timed for the plan"""
Tell = Callable[[str], None]
Results = dict[tuple[str, int, str], dict[str, Any]]


def compare(config: CompareConfig, out: Path, *, tell: Tell = lambda line: None) -> dict[str, Any]:
    """Measure everything that `config` asks for; results are written to `out/results.json` and returned.

    A comparison that was interrupted goes on where it stopped: finished jobs are read back, unfinished trainings go on
    from their checkpoint.

    Args:
        config: the comparison.
        out: folder of the comparison.
        tell: called with lines for a person: the plan, and each job as it ends.

    Raises:
        ConfigError: an unknown mechanism or option, sizes that do not fit, or `out` holds something else. Nothing is
            written then.
        DataError: texts or images that are missing, or too small for the windows and splits asked for.
        ResourceError: a folder that cannot be written.
        UnsupportedError: a mechanism that cannot do the task.
        NumericsError: a training whose loss is no longer finite.
        CheckpointError: a damaged file in `out`.
    """
    task = _possible(config, out)
    measures = TASKS[task]
    _claim(config, out, task, _enough(config, measures[0]))
    expected = _plan(config, out, measures, tell)
    quality = _trainings(config, out, measures, expected, tell)
    costs = {
        name: _kept(
            out,
            f"cost-{name}",
            lambda fixed=fixed: _cost(config, measures[0], fixed=fixed),
            tell,
            f"cost over length, {name} allocation",
            list,
        )
        for name, fixed in (("fixed", True), ("default", False))
    }
    speeds = _speeds(config, out, measures[0], tell)
    rows = _references(config, out, measures[0], expected, speeds, tell)
    results = assemble(config, task, expected, quality, speeds, costs, rows)
    write_json(out / "results.json", sealed(results))
    return results


def _possible(config: CompareConfig, out: Path) -> str:
    """The task; specifications that cannot be built, or cannot do it, are refused before anything is written."""
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
    timed = _sweep(config, TASKS[task][0], fixed=True)
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
        written = _read(path, "choose another --out, or remove that folder")
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


def _read(path: Path, way_out: str) -> dict[str, Any]:
    """What an earlier call wrote, verified. What a version without checksums wrote is read as it is."""
    try:
        return opened(content(path), earlier=True)
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}; {way_out}") from error


def _result(path: Path, form: type | tuple[type, ...] = (dict, list)) -> Any:
    """The result that a finished job left; a version that named no jobs left only that."""
    way_out = "remove it, and only that job is repeated"
    document = _read(path, way_out)
    result = document.pop("result", None)
    if document and document != _identity(path):
        raise CheckpointError(f"{path} is not the file of this job of this comparison; {way_out}")
    if not isinstance(result, form):
        raise CheckpointError(f"{path} is damaged: its result is {type(result).__name__}; {way_out}")
    return result


def _write(path: Path, result: object) -> None:
    write_json(path, sealed({**_identity(path), "result": result}))


def _identity(path: Path) -> dict[str, str]:
    """Which job of which comparison: the name says what was measured, the digest with which settings and data."""
    settings = _read(path.parent.parent / "comparison.json", "choose another --out, or remove that folder")
    return {"job": path.stem, "comparison": sealed(settings)[KEY]}


def _kept(out: Path, name: str, make: Callable[[], Any], tell: Tell, label: str, form: type = dict) -> Any:
    """A job's result, from its file if it ended before."""
    path = out / "jobs" / f"{name}.json"
    if path.exists():
        return _result(path, form)
    began = time.perf_counter()
    try:
        result = json.loads(json.dumps(make()))
    except RegardError as error:
        raise type(error)(f"{label}: {error}") from error
    _write(path, result)
    tell(f"{label}: {time.perf_counter() - began:.0f} s")
    return result


def _plan(config: CompareConfig, out: Path, measures: Sequence[Measure], tell: Tell) -> Expected:
    """How many steps the budget allows, from the time of a few."""

    def make() -> dict[str, Any]:
        tell(f"planning: {PROBE_STEPS} steps of every specification")
        described = [
            replace(jobs.job(config, out, measure, spec, 0, 1), steps_only=PROBE_STEPS)
            for measure in measures
            for spec in config.specs
        ]
        probes = run_apart(described, threads=config.threads)
        count, total, steps = len(config.specs), 0.0, {}
        for at, measure in enumerate(measures):
            step_seconds = sum(probe["seconds"] for probe in probes[at * count : (at + 1) * count]) * config.seeds
            # Each baseline takes as long as a specification does on average.
            step_seconds *= 1 + len(_beside(config, measure)) / count
            steps[measure.name] = measure.option(config, "steps")
            if config.budget is not None:
                steps[measure.name] = max(
                    int(measure.share * seconds(config.budget) / step_seconds), measure.least_steps
                )
            total += step_seconds * steps[measure.name]
        total = total / sum(measure.share for measure in measures)
        return asdict(Expected(steps, total / 60, max(p["peak_bytes"] for p in probes)))

    plan = _kept(out, "plan", make, tell, "plan")
    try:
        expected = Expected(**plan)
        expected = replace(expected, steps={measure.name: expected.steps[measure.name] for measure in measures})
    except (TypeError, KeyError) as error:
        raise CheckpointError(
            f"{out / 'jobs' / 'plan.json'} is damaged: {error}; remove it, and only that job is repeated"
        ) from error
    first, *others = (f"{expected.steps[measure.name]} {{}}on {measure.subject}" for measure in measures)
    beside = _beside(config, measures[0])
    tell(
        f"expected: {expected.minutes:.1f} minutes, {expected.peak_bytes / 2**30:.1f} GiB of memory; "
        f"{len(config.specs)} specifications x {config.seeds} seeds, "
        f"{', '.join([first.format('steps '), *(other.format('') for other in others)])} each"
        + (f"; {', '.join(beside)} for as long" if beside else "")
    )
    if config.budget is not None and 60 * expected.minutes > 1.2 * seconds(config.budget):
        least, *others = (f"{measure.least_steps} {{}}on {measure.subject}" for measure in measures)
        tell(
            f"that is more than the budget of {config.budget}: nothing is trained for fewer than "
            f"{' and '.join([least.format('steps '), *(other.format('') for other in others)])}; "
            "name fewer specifications, or choose smaller shapes or lengths"
        )
    return expected


def _beside(config: CompareConfig, measure: Measure) -> tuple[BaselineKind, ...]:
    """The baselines that are trained."""
    return config.baselines if measure.name == "classification" else ()


def _trainings(
    config: CompareConfig, out: Path, measures: Sequence[Measure], expected: Expected, tell: Tell
) -> Results:
    """The quality of every (specification, seed, measure). The measures of one model share a process, the first one
    first: it is its peak memory that is reported.
    """
    results: Results = {}
    for seed in range(config.seeds):
        for spec in config.specs:
            described = {
                measure.name: jobs.job(
                    config,
                    out,
                    measure,
                    spec,
                    seed,
                    expected.steps[measure.name],
                    pictured=measure is measures[0],
                )
                for measure in measures
            }
            files = {name: out / "jobs" / f"{Path(job.run).name}.json" for name, job in described.items()}
            missing = [name for name in files if not files[name].exists()]
            results |= {(spec, seed, name): _result(files[name], dict) for name in files if name not in missing}
            if missing:
                _train(described, files, missing, f"{spec}, seed {seed}", config.threads, tell)
                results |= {(spec, seed, name): _result(files[name], dict) for name in missing}
    return results


def _train(
    described: dict[str, Job], files: dict[str, Path], missing: list[str], label: str, threads: int, tell: Tell
) -> None:
    """Run the missing jobs; each result is on disk as soon as it is there."""
    left = list(missing)
    began = time.perf_counter()

    def keep(result: dict[str, Any]) -> None:
        nonlocal began
        name = left.pop(0)
        _write(files[name], result)
        tell(f"{label}, {name}: {time.perf_counter() - began:.0f} s")
        began = time.perf_counter()

    try:
        run_apart([described[name] for name in missing], threads=threads, each=keep)
    except RegardError as error:
        raise type(error)(f"{label}, {left[0]}: {error}") from error


def _speeds(config: CompareConfig, out: Path, measure: Measure, tell: Tell) -> Speeds:
    """The timing of a training step of everything that is trained, in turns in one process."""

    def make() -> dict[str, Any]:
        described = {spec: jobs.job(config, out, measure, spec, 0, 1) for spec in config.specs}
        beside = _beside(config, measure)
        described |= {str(kind): jobs.baseline(config, out, kind, 0, 1) for kind in beside}
        timings = step_timings(list(described.values()), threads=config.threads)
        return dict(zip(described, timings, strict=True))

    return _kept(out, "speed", make, tell, "training steps, timed in turns")


def _references(
    config: CompareConfig, out: Path, measure: Measure, expected: Expected, speeds: Speeds, tell: Tell
) -> list[dict[str, Any]]:
    """The rows beside the specifications."""
    steps, counting = expected.steps[measure.name], references.COUNTING[measure.name]
    if not counting:
        return []
    label = f"{counting} baselines"
    rows = _kept(out, "baselines", lambda: references.counted(config, measure, steps), tell, label, list)
    if not _beside(config, measure):
        return rows

    def kept(name: str, make: Callable[[], Any], label: str) -> Any:
        return _kept(out, name, make, tell, label)

    return rows + references.trained(config, out, steps, speeds, kept)


def _cost(config: CompareConfig, measure: Measure, *, fixed: bool) -> list[dict[str, Any]]:
    return [asdict(row) for row in sweep.sweep(_sweep(config, measure, fixed=fixed), fixed_allocation=fixed)]


def _sweep(config: CompareConfig, measure: Measure, *, fixed: bool) -> sweep.SweepConfig:
    shape = measure.shape(config)
    passes = ("forward", "both", "decode") if measure.causal else ("forward", "both")
    return sweep.SweepConfig(
        specs=config.mechanisms,
        lengths=config.lengths,
        heads=shape.heads,
        key_dim=shape.dim // shape.heads,
        causal=measure.causal,
        passes=passes if fixed else ("both",),
        rounds=config.rounds if fixed else max(config.rounds // 2, 1),
        seconds=_sweep_seconds(config, fixed=fixed),
        threads=config.threads,
    )


def _sweep_seconds(config: CompareConfig, *, fixed: bool) -> float:
    """Most seconds for one pass of a sweep."""
    if config.budget is None:
        return 120.0
    return seconds(config.budget) * (0.04 if fixed else 0.03)
