"""Comparisons for people: a table in the terminal, and one HTML file. Names are imported on first use."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.benchmark.config import CompareConfig, TaskName

__all__ = ["compare"]


def compare(
    specs: "Sequence[str] | None" = None,
    *,
    task: "TaskName | None" = None,
    out: str | Path = "comparison",
    config: "CompareConfig | None" = None,
    budget: str | None = None,
    seeds: int | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Compare mechanisms in the same model on the same data; writes results.json and report.html into `out`.

    Args:
        specs: mechanisms, `a / b` alternating by layer; None: those of `config`.
        task: lm, mlm, classify or recall; None: that of `config`, else what all specifications can do.
        out: folder; one that holds the same comparison, unfinished, is continued.
        config: everything else; None: the defaults.
        budget: time for everything, such as "5m"; None: that of `config`.
        seeds: trainings of every specification; None: that of `config`.
        tell: called with lines about the progress.

    Returns:
        The content of results.json; `["recommendation"]` says which one to use, and why.

    Raises:
        ConfigError: unknown mechanisms or options, or a folder with another comparison.
        DataError: texts or images that are missing or too few.
        UnsupportedError: a mechanism that cannot do the task; the message says which tasks all of them can do.
    """
    from dataclasses import replace

    from regard.benchmark import comparison
    from regard.benchmark.config import CompareConfig
    from regard.report import html

    config = config or CompareConfig()
    changes = {"specs": None if specs is None else tuple(specs), "task": task, "budget": budget, "seeds": seeds}
    config = replace(config, **{name: value for name, value in changes.items() if value is not None})
    results = comparison.compare(config, Path(out), tell=tell)
    html.write(results, Path(out) / "report.html")
    return results
