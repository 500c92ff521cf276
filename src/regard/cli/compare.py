"""Compare attention mechanisms on your text and on exact recall; leaves a report that says which one to use.

Without arguments: exact attention, a window, two linear ones, a hybrid and a vector-quantised one on the bundled State
of the Union addresses. Mechanisms that cannot be causal are compared by masked language modelling; --task chooses
another task, such as classify. Started again with the same --out and settings, an interrupted comparison goes on.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path

import tyro

from regard.benchmark.config import DEFAULT_SPECS, CompareConfig, quick
from regard.cli._output import console, emit, table
from regard.errors import ConfigError


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
    json: bool = False
    """print results.json on stdout"""


def run(options: Options) -> int:
    """Compare, print the table, and say where the report is."""
    from regard.report import compare

    config = configured(options)
    notes = console(machine=True)
    try:
        results = compare(config=config, out=options.out, tell=lambda line: notes.print(line, markup=False))
    except KeyboardInterrupt:
        kept = (Path(options.out) / "comparison.json").exists()
        way = (
            f"the same command goes on where it stopped, with what is in {options.out}" if kept else "nothing was kept"
        )
        notes.print(f"regard compare: interrupted; {way}", markup=False)
        return 130
    if options.json:
        emit(results)
        return 0
    show(results, Path(options.out))
    return 0


def configured(options: Options) -> CompareConfig:
    """The comparison that the options describe.

    Raises:
        ConfigError: --data for another task than classify; --quick beside --budget.
    """
    config = CompareConfig(**{field.name: getattr(options, field.name) for field in fields(CompareConfig)})
    config = quick(config) if options.quick else config
    if options.data is None:
        return config
    if config.task not in (None, "classify"):
        raise ConfigError(f"--data is for --task classify, and --task {config.task} reads none of it; leave one out")
    return replace(config, task="classify", classification=replace(config.classification, data=options.data))


def show(results: dict, out: Path) -> None:
    """The table and the recommendation, on stdout."""
    from regard.report.summary import notes, tie_note
    from regard.report.summary import table as summary

    screen = console()
    columns, rows = summary(results)
    screen.print(table(*columns, rows=rows))
    for line in (tie_note(results), *notes(results)):
        screen.print(line, markup=False)
    advice = results["recommendation"]
    screen.print(f"\nUse {advice['spec']}: {advice['reason']}", markup=False)
    screen.print(f"\nReport: {out / 'report.html'}", markup=False)
