"""Comparisons for people: a table in the terminal, and one HTML file. Names are imported on first use."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.core.errors import ConfigError, kind_of, nearest

if TYPE_CHECKING:
    from regard_lab.benchmark.config import CompareConfig, TaskName
    from regard_lab.benchmark.language import Language

__all__ = ["compare"]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def compare(
    specs: "Sequence[str] | None" = None,
    *,
    task: "TaskName | None" = None,
    out: str | Path = "comparison",
    config: "CompareConfig | None" = None,
    budget: str | None = None,
    seeds: int | None = None,
    language: "Language" = "en",
    quick: bool = False,
    tell: Callable[[str], None] = _say,
) -> dict[str, Any]:
    """Compare mechanisms in the same model on the same data; writes results.json and report.html into `out`.

    Args:
        specs: mechanisms, `a / b` alternating by layer; None: those of `config`.
        task: lm, mlm, classify or recall; None: that of `config`, else what all specifications can do.
        out: folder; one that holds the same comparison, unfinished, is continued.
        config: everything else; None: the defaults.
        budget: time for everything, such as "5m"; None: that of `config`.
        seeds: trainings of every specification; None: that of `config`.
        language: of the report: en or zh (Chinese).
        quick: a first look within a minute, or what a slow machine needs; see `regard_lab.benchmark.config.quick`.
        tell: called with lines about the progress; not given: they go to standard error, as on the command line.

    Returns:
        The content of results.json; `["recommendation"]` says which one to use, and why: its `spec` is None where the
        measurements recommend none, or several tie. `["advice"]` has a winner for each need.

    Raises:
        ConfigError: unknown mechanisms, options or language, a folder with another comparison, or a budget that is too
            small.
        DataError: texts or images that are missing or too few.
        UnsupportedError: a mechanism that cannot do the task; the message says which tasks all of them can do.
    """
    from dataclasses import replace

    from regard_lab.benchmark import comparison
    from regard_lab.benchmark.config import CompareConfig
    from regard_lab.benchmark.config import quick as hurried
    from regard_lab.benchmark.plan import TooShort
    from regard_lab.report import html

    if isinstance(specs, str):
        raise ConfigError(f"specs is a list of specifications; write [{specs!r}]")
    config = CompareConfig() if config is None else config
    if not isinstance(config, CompareConfig):
        raise ConfigError(f"config is a CompareConfig, got {kind_of(config)}")
    if language not in ("en", "zh"):
        raise ConfigError(f"language: no choice {language!r}: {nearest(language, ('en', 'zh'))}")
    changes = {"specs": None if specs is None else tuple(specs), "task": task, "budget": budget, "seeds": seeds}
    config = replace(config, **{name: value for name, value in changes.items() if value is not None})
    config = hurried(config) if quick else config
    try:
        results = comparison.compare(config, Path(out), tell=tell)
    except TooShort as error:
        if not quick:
            raise
        tell(f"this machine is slow, or busy: the quick comparison takes {error.needed} here, not {config.budget}")
        results = comparison.compare(replace(config, budget=error.needed), Path(out), tell=tell)
    html.write(results, Path(out) / "report.html", language)
    return results
