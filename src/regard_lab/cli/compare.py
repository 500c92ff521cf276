"""Compare attention mechanisms on your text and on exact recall; leaves a report that says which one to use.

Without arguments: exact attention, a window, two linear ones, a hybrid and a vector-quantised one on the bundled State
of the Union addresses. Mechanisms that cannot be causal are compared by masked language modelling; --task chooses
another task, such as classify. Started again with the same --out and settings, an interrupted comparison goes on.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

import tyro

from regard.cli import leaving
from regard.core.errors import ConfigError
from regard_lab.benchmark.config import DEFAULT_SPECS, CompareConfig
from regard_lab.cli._output import console, emit, table, tell, will_write


@dataclass(frozen=True)
class Options(CompareConfig):
    """The mechanisms to compare, and where the results go."""

    specs: tyro.conf.Positional[tuple[str, ...]] = DEFAULT_SPECS
    """mechanisms; `a / b` alternates by layer, `a:2 + b:2` mixes by head"""
    out: str = "comparison"
    """folder for results.json, report.html and everything that an interrupted comparison needs to go on"""
    quick: bool = False
    """a first look within a minute: --budget 60s, shorter --lengths, fewer rounds"""
    data: str | None = None
    """compare by classify on these texts or images, see --classification.data"""
    language: Literal["en", "zh"] = "en"
    """of the table and the report: English or Chinese"""
    json: bool = False
    """print results.json on stdout"""


def run(options: Options) -> int:
    """Compare, print the table, and say where the report is."""
    from regard_lab.report import compare

    config = configured(options)
    will_write(options.out, "results.json", "report.html")
    with leaving(lambda: _left(options.out)):
        results = compare(config=config, out=options.out, language=options.language, quick=options.quick, tell=tell)
    if options.json:
        emit(results)
        return 0
    show(results, Path(options.out), options.language)
    return 0


def _left(out: str) -> str:
    """What an interrupted comparison leaves."""
    kept = (Path(out) / "comparison.json").exists()
    return f"the same command goes on where it stopped, with what is in {out}" if kept else "nothing was kept"


def configured(options: Options) -> CompareConfig:
    """The comparison that the options describe.

    Raises:
        ConfigError: --data for another task than classify.
    """
    config = CompareConfig(**{field.name: getattr(options, field.name) for field in fields(CompareConfig)})
    if options.data is None:
        return config
    if config.task not in (None, "classify"):
        raise ConfigError(f"--data is for --task classify, and --task {config.task} reads none of it; leave one out")
    return replace(config, task="classify", classification=replace(config.classification, data=options.data))


def show(results: dict, out: Path, language: Literal["en", "zh"] = "en") -> None:
    """The table, the advice for each need and the recommendation, on stdout."""
    from regard_lab.benchmark.language import Words
    from regard_lab.report.summary import needs, notes, recommendation, tie_note
    from regard_lab.report.summary import table as summary

    screen, say = console(), Words(language)
    columns, rows = summary(results, say)
    screen.print(table(*columns, rows=rows))
    for line in (tie_note(results, say), *notes(results, say)):
        screen.print(line, markup=False)
    heads = (say("need"), say("advice"), say("why"))
    screen.print(table(*heads, rows=[(one.title, one.advised, one.why) for one in needs(results, say)]))
    short, why = recommendation(results, say)
    screen.print(f"{short}: {why}", markup=False)
    screen.print(f"\n{say('Report: {path}', path=out / 'report.html')}", markup=False)
