"""What runs decide for themselves, measured on their validation data, as one self-contained HTML file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from regard import __version__
from regard.core.errors import ConfigError
from regard.models import LanguageModel
from regard.models.depth.universal import Universal
from regard_lab.benchmark.decisions import Observed, body, most_steps, observe
from regard_lab.benchmark.depth_costs import leaving_after, token_operations
from regard_lab.benchmark.exits import COSINES
from regard_lab.networks import exits
from regard_lab.report import _page
from regard_lab.report.figure import Chart
from regard_lab.report.run_charts import MEASURES, charts, measure_of
from regard_lab.tasks import build_task
from regard_lab.tasks.base import Task
from regard_lab.training import TrainedModel, load
from regard_lab.training.batches import collate
from regard_lab.training.beside import alone

Results = Mapping[str, Any]
CURVE = (0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05)
"""thresholds that are drawn of exits that nobody calibrated"""


def measure(
    runs: Sequence[str | Path],
    *,
    limit: int = 32,
    threshold: float | None = None,
    device: str = "auto",
    trust: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure what runs on the same data decide: exits, ponder steps, spans, and what these cost and lose.

    Args:
        runs: directories. Exits are used as `regard calibrate` left them in the run, else as they were trained.
        limit: validation examples, evenly spaced; 0: all.
        threshold: of the first run's exits, instead.
        device, trust: as `regard.load`.
        tell: called with lines about the progress.

    Returns:
        `version`, `limit`, `tokens` (targets), and `runs`: of each name, step, parameters, depth, unit, `most`,
        `operations` and `fixed_operations` by blocks, points `used`, `exits` (by threshold) and `fixed` (by blocks),
        `spans`, and its `calibration`.

    Raises:
        ConfigError: runs of which none decides anything, or on different data; a threshold for what has none.
        Others: as `regard.load`.
    """
    loaded = [load(run, device=device, trust=trust) for run in runs]
    first = loaded[0]
    for other in loaded[1:]:
        if (other.config.task, other.data) != (first.config.task, first.data):
            raise ConfigError(
                f"{other.path} was trained on other data, or on its text in other pieces, than {first.path}: their "
                "losses do not compare; leave it out"
            )
    config = first.config
    task = build_task(config.task, seed=config.training.seed, tokenizer=first.tokenizer)
    task = alone(config, task)
    found = [
        _run(one, task, limit=limit, threshold=None if at else threshold, tell=tell) for at, one in enumerate(loaded)
    ]
    for one, name in zip(found, names([run.path for run in loaded]), strict=True):
        one["name"] = name
    if not any(one["used"]["taken"] or one["spans"] for one in found):
        raise ConfigError(
            f"every token of {' and '.join(str(run) for run in runs)} takes every block, and no head has a span: there "
            "is nothing to show. regard calibrate gives a decoder exits (--heads own or light); regard explore shows "
            "where heads look"
        )
    return {"version": __version__, "limit": limit, "tokens": found[0]["tokens"], "runs": found}


def names(runs: Sequence[Path]) -> list[str]:
    """What runs are called: by their folders, or where these have the same name as they were given.

    Example:
        >>> names([Path("a/small"), Path("b/small"), Path("b/../large/")])
        ['a/small', 'b/small', 'large']
    """
    folders = [run.resolve().name for run in runs]
    return [name if folders.count(name) == 1 else str(run) for name, run in zip(folders, runs, strict=True)]


def _run(
    run: TrainedModel, task: Task, *, limit: int, threshold: float | None, tell: Callable[[str], None]
) -> dict[str, Any]:
    """One run; its model keeps the exits that it is used with."""
    model, folder = run.model, run.path / exits.FOLDER
    calibration = exits.install(model, folder) if folder.is_dir() and isinstance(model, LanguageModel) else None
    depth, most = body(model).depth, most_steps(model)
    asks: bool = getattr(depth, "asks", False)
    if threshold is not None:
        if getattr(depth, "thresholds", ()):
            raise ConfigError(f"every block of {run.path} has a threshold of its own; leave --threshold out")
        if not asks:
            raise ConfigError(f"{run.path} has no exits with a threshold; leave --threshold out")
        if not 0 <= threshold <= 1:
            raise ConfigError(f"--threshold must lie between 0 and 1, got {threshold:g}")
        depth.threshold = threshold
    example = collate(task.examples("valid"), [0], task.vocab_size, num_targets=task.num_targets)
    deciding, fixed = token_operations(model, example.to(next(model.parameters()).device))

    def point(costs: Sequence[int], **what: object) -> tuple[dict[str, Any], Observed]:
        seen = observe(model, task, limit=limit)
        place = {"taken": seen.taken, **_place(model, seen.taken, costs)}
        return {"threshold": None, "blocks": None, **what, **place, **seen.total.summary()}, seen

    tell(f"{run.path}: as it is used")
    level = depth.threshold if asks else None
    used, seen = point(fixed if level == 1 else deciding, threshold=level)
    tried, told = [], []
    if asks:
        grid = CURVE if calibration is None else tuple(calibration["calibrated"]["thresholds"])
        if calibration is None and getattr(depth, "confidence", None) == "saturation":
            grid = COSINES
        for one in grid:
            depth.threshold = one
            tried.append(point(deciding, threshold=one)[0])
            tell(f"{run.path}: threshold {one:g}, {tried[-1]['depth']:.2f} of {most} blocks")
        depth.threshold = level
    for blocks in range(1, (most or 0) + 1):
        with leaving_after(model, blocks):
            told.append(point(fixed, blocks=blocks)[0])
        tell(f"{run.path}: every token takes {blocks} of {most}")
    return {
        "name": run.path.name,
        "step": run.step,
        "parameters": sum(x.numel() for x in model.parameters()),
        "depth": getattr(run.config.model, "depth", "fixed"),
        "heads": None if calibration is None else calibration["heads"],
        "unit": "steps" if isinstance(depth, Universal) else "blocks",
        "most": most,
        "tokens": seen.total.tokens,
        "operations": deciding,
        "fixed_operations": fixed,
        "used": used,
        "exits": tried,
        "fixed": told,
        "spans": [asdict(one) for one in seen.spans],
        "calibration": calibration,
    }


def _place(model: nn.Module, taken: Sequence[int], costs: Sequence[int]) -> dict[str, float]:
    """Mean blocks and operations of a token."""
    blocks, depth = len(body(model).blocks), body(model).depth
    of_step = blocks if isinstance(depth, Universal) else 1
    if not taken:
        return {"depth": float(of_step * getattr(depth, "steps", blocks)), "operations": float(costs[-1])}
    steps = sum(number * count for number, count in enumerate(taken, 1)) / sum(taken)
    operations = sum(cost * count for cost, count in zip(costs, taken, strict=True)) / sum(taken)
    return {"depth": of_step * steps, "operations": operations}


def rows(results: Results) -> list[tuple[str, ...]]:
    """Of every run, as it is used: what the summary shows."""
    metric = measure_of(results["runs"])
    return [
        (
            run["name"],
            run["depth"] if run["heads"] in (None, "trained") else f"{run['depth']}, exits: {run['heads']}",
            f"{run['parameters']:,}",
            f"{run['step']:,}",
            f"{run['used']['depth']:.2f}",
            f"{run['used']['operations']:,.0f}",
            f"{run['used'][metric]:.4f}",
            f"{run['used']['accuracy']:.1%}",
        )
        for run in results["runs"]
    ]


def columns(results: Results) -> tuple[str, ...]:
    """The heads of `rows`."""
    metric = MEASURES[measure_of(results["runs"])]
    return ("run", "depth", "parameters", "step", "mean blocks", "operations of a token", metric, "right")


def notes(results: Results) -> list[str]:
    """What has to be known of the numbers."""
    lines = [
        f"Validation data of the runs: {results['tokens']:,} targets"
        + (f" of {results['limit']} examples, evenly spaced." if results["limit"] else ".")
    ]
    for run in results["runs"]:
        if run["used"]["threshold"] == 1 and run["most"] > 1:
            why = "nothing was certified" if run["calibration"] else "it was trained to be used so"
            text = run["used"]["bits_per_byte"] is not None
            lines.append(
                f"{run['name']} is used at threshold 1, where no token leaves: {why}. "
                + ("regard calibrate finds a threshold with a guarantee, " if text else "")
                + "regard report --threshold shows another one, without any guarantee."
            )
    return lines


def render(results: Results) -> str:
    """The page."""
    title = f"How far heads look, and how many {results['runs'][0]['unit']} tokens take"
    summary = Chart("summary", "Runs, as they are used", "", None, columns(results), rows(results))
    return _page.measured(title, notes(results), [summary, *charts(results["runs"])], results)
