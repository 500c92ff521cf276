"""The comparison itself: a plan that fits the budget, and jobs that survive an interruption."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from regard import __version__, catalog, specs
from regard.benchmark import sweep
from regard.benchmark.config import CompareConfig, seconds
from regard.benchmark.quality import Job, run_apart
from regard.benchmark.results import Expected, assemble
from regard.errors import CheckpointError, ConfigError, DataError, RegardError
from regard.models import LanguageModel, ModelConfig
from regard.tasks import Task, build_task, ngram_bits_per_byte, xz_bits_per_byte
from regard.training.config import TrainingConfig
from regard.training.data_order import DataOrder
from regard.training.evaluation import measured
from regard.training.files import write_json, writing

PROBES = 3
"""steps timed for the plan"""
TEXT_SHARE, RECALL_SHARE = 0.38, 0.32
"""of a budget; the rest is for timings, baselines, evaluation and the report"""
LEAST_STEPS = 20
LEAST_RECALL_STEPS = 450
"""exact attention learns recall in about 300 of the default steps; a comparison in which it has not says nothing"""
TASKS = ("text", "recall")
Tell = Callable[[str], None]


def compare(config: CompareConfig, out: Path, *, tell: Tell = lambda line: None) -> dict[str, Any]:
    """Measure everything that `config` asks for; results are written to `out/results.json` and returned.

    A comparison that was interrupted goes on where it stopped: finished jobs are read back, unfinished trainings go on
    from their checkpoint.

    Args:
        config: what to compare.
        out: folder of the comparison.
        tell: called with lines for a person: the plan, and each job as it ends.

    Raises:
        ConfigError: an unknown mechanism or option, sizes that do not fit, or `out` holds something else. Nothing is
            written then.
        DataError: a corpus that is missing, or too small for the windows and splits asked for.
        ResourceError: a folder that cannot be written.
        UnsupportedError: a mechanism that cannot be causal.
        NumericsError: a training whose loss is no longer finite.
        CheckpointError: a damaged file in `out`.
    """
    _possible(config, out)
    _claim(config, out, _enough(config))
    expected = _plan(config, out, tell)
    quality = _trainings(config, out, expected, tell)
    costs = {
        name: _kept(
            out,
            f"cost-{name}",
            lambda fixed=fixed: _cost(config, fixed=fixed),
            tell,
            f"cost over length, {name} allocation",
        )
        for name, fixed in (("fixed", True), ("default", False))
    }
    baselines = _kept(out, "baselines", lambda: _baselines(config, expected), tell, "n-gram and xz baselines")
    results = assemble(config, expected, quality, costs, baselines)
    write_json(out / "results.json", results)
    return results


def _possible(config: CompareConfig, out: Path) -> None:
    """Refuse specifications that cannot be built, before anything is written."""
    for part in config.mechanisms:
        for piece in [inner for inner, _ in catalog.parts(part)] or [part]:
            if not specs.is_path(piece) and not catalog.resolve(piece)[0].__module__.startswith("regard."):
                raise ConfigError(
                    f"{piece!r} is registered in this process only, and a comparison trains in processes of its own; "
                    "name it by its import path, module:Class"
                )
    for spec in config.specs:
        for task in TASKS:
            LanguageModel(_described(config, out, None, spec, 0, task).model)
    plan = _sweep(config, fixed=True)
    for part in config.mechanisms:
        plan.build(part)


def _enough(config: CompareConfig) -> Task:
    """The text; data that cannot tell mechanisms apart is refused before anything is trained."""
    try:
        task = build_task(config.text)
    except DataError as error:
        raise DataError(str(error).replace("--task.", "--text.")) from error  # what a comparison calls these options
    windows = len(task.examples("train"))
    if windows < config.batch_size:
        raise DataError(
            f"{config.text.corpus} has {windows} training windows of {config.text.length} tokens, fewer than one batch "
            f"of {config.batch_size}; use more text, a smaller --text.length or a smaller --batch-size"
        )
    return task


def _claim(config: CompareConfig, out: Path, text: Task) -> None:
    """Make the folder this comparison's, or refuse one that holds another comparison."""
    own = json.loads(json.dumps({**asdict(config), "data": text.fingerprint, "version": __version__}))
    path = out / "comparison.json"
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        empty = not any(out.iterdir())
    if path.exists():
        found = _read(path)
        if found != own:
            changed = sorted(name for name in own if own[name] != found.get(name))
            raise ConfigError(
                f"{out} holds a comparison with other settings ({', '.join(changed)}); "
                "choose another --out, or remove that folder"
            )
    elif empty:
        write_json(path, own)
    else:
        raise ConfigError(f"{out} is not empty and holds no comparison; choose another --out")


def _read(path: Path) -> Any:
    """What a finished job left."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}; remove it, and only that job is repeated") from error


def _kept(out: Path, name: str, make: Callable[[], Any], tell: Tell, label: str) -> Any:
    """A job's result, from its file if it ended before."""
    path = out / "jobs" / f"{name}.json"
    if path.exists():
        return _read(path)
    began = time.perf_counter()
    try:
        result = json.loads(json.dumps(make()))
    except RegardError as error:
        raise type(error)(f"{label}: {error}") from error
    write_json(path, result)
    tell(f"{label}: {time.perf_counter() - began:.0f} s")
    return result


def _plan(config: CompareConfig, out: Path, tell: Tell) -> Expected:
    def make() -> dict[str, Any]:
        tell(f"planning: {PROBES} steps of every specification")
        jobs = [
            replace(_described(config, out, None, spec, 0, task), steps_only=PROBES)
            for task in TASKS
            for spec in config.specs
        ]
        probes = run_apart(jobs, threads=config.threads)
        half = len(config.specs)
        text, recall = (sum(p["seconds"] for p in part) * config.seeds for part in (probes[:half], probes[half:]))
        text_steps, recall_steps = config.text_steps, config.recall_steps
        if config.budget is not None:
            budget = seconds(config.budget)
            text_steps = max(int(TEXT_SHARE * budget / text), LEAST_STEPS)
            recall_steps = max(int(RECALL_SHARE * budget / recall), LEAST_RECALL_STEPS)
        total = text * text_steps + recall * recall_steps
        total = total / (TEXT_SHARE + RECALL_SHARE)
        return asdict(Expected(text_steps, recall_steps, total / 60, max(p["peak_bytes"] for p in probes)))

    expected = Expected(**_kept(out, "plan", make, tell, "plan"))
    tell(
        f"expected: {expected.minutes:.1f} minutes, {expected.peak_bytes / 2**30:.1f} GiB of memory; "
        f"{len(config.specs)} specifications x {config.seeds} seeds, {expected.text_steps} steps on text, "
        f"{expected.recall_steps} on recall each"
    )
    if config.budget is not None and 60 * expected.minutes > 1.2 * seconds(config.budget):
        tell(
            f"that is more than the budget of {config.budget}: nothing is trained for fewer than {LEAST_STEPS} steps "
            f"on text and {LEAST_RECALL_STEPS} on recall; "
            "name fewer specifications, or choose smaller shapes or lengths"
        )
    return expected


def _described(config: CompareConfig, out: Path, expected: Expected | None, spec: str, seed: int, task: str) -> Job:
    text = task == "text"
    steps = 1 if expected is None else expected.text_steps if text else expected.recall_steps
    task_config = config.text if text else config.recall
    slug = f"{spec.translate({ord(c): '-' for c in ' /()=,+:'})}-{hashlib.sha256(spec.encode()).hexdigest()[:6]}"
    shape = config.shape if text else config.recall_shape
    return Job(
        model=ModelConfig(
            dim=shape.dim,
            layers=shape.layers,
            heads=shape.heads,
            position=shape.position,
            short_convolution=shape.short_convolution,
            mlp=shape.mlp,
            attention=config.layers(spec),
            max_length=task_config.length,
            seed=seed,
        ),
        task="text" if text else "recall",
        task_config=task_config,
        training=TrainingConfig(
            steps=steps,
            batch_size=config.batch_size if text else config.recall_batch_size,
            learning_rate=config.learning_rate if text else config.recall_learning_rate,
            warmup=max(steps // 10, 1),
            log_every=max(steps // 40, 1),
            evaluate_every=steps,
            evaluate_examples=32,
            checkpoint_every=max(steps // 4, 1),
            keep=1,
            seed=seed,
            device="cpu",
            threads=config.threads,
        ),
        run=str(out / "runs" / f"{slug}-{task}-{seed}"),
        evaluate_examples=config.evaluate_examples,
    )


def _trainings(
    config: CompareConfig, out: Path, expected: Expected, tell: Tell
) -> dict[tuple[str, int, str], dict[str, Any]]:
    """The quality of every (specification, seed, task). The tasks of one model share a process, text first: it is the
    peak memory on text that is reported.
    """
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    for seed in range(config.seeds):
        for spec in config.specs:
            jobs = {task: _described(config, out, expected, spec, seed, task) for task in TASKS}
            files = {task: out / "jobs" / f"{Path(job.run).name}.json" for task, job in jobs.items()}
            missing = [task for task in TASKS if not files[task].exists()]
            found |= {(spec, seed, task): _read(files[task]) for task in TASKS if task not in missing}
            if missing:
                _train(jobs, files, missing, f"{spec}, seed {seed}", config.threads, tell)
                found |= {(spec, seed, task): _read(files[task]) for task in missing}
    return found


def _train(
    jobs: dict[str, Job], files: dict[str, Path], missing: list[str], label: str, threads: int, tell: Tell
) -> None:
    """Run the missing jobs; each result is on disk as soon as it is there."""
    left = list(missing)
    began = time.perf_counter()

    def keep(result: dict[str, Any]) -> None:
        nonlocal began
        task = left.pop(0)
        write_json(files[task], result)
        tell(f"{label}, {task}: {time.perf_counter() - began:.0f} s")
        began = time.perf_counter()

    try:
        run_apart([jobs[task] for task in missing], threads=threads, each=keep)
    except RegardError as error:
        raise type(error)(f"{label}, {left[0]}: {error}") from error


def _cost(config: CompareConfig, *, fixed: bool) -> list[dict[str, Any]]:
    return [asdict(row) for row in sweep.sweep(_sweep(config, fixed=fixed), fixed_allocation=fixed)]


def _sweep(config: CompareConfig, *, fixed: bool) -> sweep.Plan:
    return sweep.Plan(
        specs=config.mechanisms,
        lengths=config.lengths,
        heads=config.shape.heads,
        key_dim=config.shape.dim // config.shape.heads,
        passes=("forward", "both", "decode") if fixed else ("both",),
        rounds=config.rounds if fixed else max(config.rounds // 2, 1),
        seconds=_sweep_seconds(config, fixed=fixed),
        threads=config.threads,
    )


def _sweep_seconds(config: CompareConfig, *, fixed: bool) -> float:
    """Most seconds for one pass of a sweep."""
    if config.budget is None:
        return 120.0
    return seconds(config.budget) * (0.04 if fixed else 0.03)


def _baselines(config: CompareConfig, expected: Expected) -> list[dict[str, Any]]:
    """Models without attention: they learn the windows that seed 0 trained on, and code those it is measured on."""
    task = build_task(config.text)
    order = DataOrder(len(task.examples("train")), config.batch_size, 0)
    seen = sorted({index for step in range(expected.text_steps) for index in order.batch(step)})
    coded = measured(len(task.examples("valid")), config.evaluate_examples)
    found = (
        (f"{config.ngram}-gram", ngram_bits_per_byte(task, order=config.ngram, windows=coded, train_windows=seen)),
        ("xz", xz_bits_per_byte(task, windows=coded, train_windows=seen)),
    )
    return [
        {"name": name, "documents": {"bits": bits[sizes > 0].tolist(), "bytes": sizes[sizes > 0].tolist()}}
        for name, (bits, sizes) in found
    ]
