"""Write the report of a comparison again; or of a run what it decides for itself: depth, spans, and what these cost."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro

from regard.core.errors import ConfigError, DataError
from regard.files.checksums import opened
from regard.files.reading import content
from regard_lab.benchmark.config import FORMAT
from regard_lab.benchmark.threads import default_threads
from regard_lab.cli._numbers import require_positive
from regard_lab.cli._output import console, emit, table, tell, will_write
from regard_lab.cli._threads import cpu_threads
from regard_lab.run_info import is_run

_AGAIN = (
    "give the regard compare command that made them again, with its words: what its jobs measured is read back, and "
    "they are written anew"
)


@dataclass(frozen=True)
class Options:
    """Whose report."""

    folder: tyro.conf.Positional[str]
    """folder of a comparison, or its results.json; or a run whose tokens take as many blocks as they need, or whose
    heads learn how far they look"""
    out: str | None = None
    """HTML file; by default report.html in the folder"""
    language: Literal["en", "zh"] = "en"
    """of a comparison: English or Chinese"""
    beside: tuple[str, ...] = ()
    """of a run: others on the same data that are shown in the same pictures, such as models of fewer blocks"""
    limit: int | None = None
    """of a run: validation examples that are measured, evenly spaced; 0: all; None: 32"""
    threshold: float | None = None
    """of a run: of its exits, instead of the calibrated one, or of that which it was trained with"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """of a run: auto: cuda, else mps, else cpu"""
    threads: int = field(default_factory=default_threads)
    """of a run: CPU threads; by default OMP_NUM_THREADS, else all cores"""
    trust: bool = False
    """a run may name its mechanism by import path, module:Class, which runs that module"""
    json: bool = False
    """of a run: machine output on stdout, every number of the report"""


_OF_RUNS = ("beside", "limit", "threshold", "json")


def run(options: Options) -> int:
    """Render and say where it is."""
    if is_run(options.folder):
        if options.language != "en":
            raise ConfigError(f"{options.folder} is a run, whose report is in English; leave --language out")
        require_positive({"threads": options.threads})
        if options.limit is not None and options.limit < 0:
            raise ConfigError(f"--limit must be at least 0 (all), got {options.limit}")
        with cpu_threads(options.threads):
            return _run(options)
    for name in _OF_RUNS:
        if getattr(options, name) not in (None, (), False):
            raise ConfigError(
                f"{options.folder} is no run: --{name.replace('_', '-')} is for the report of one; leave it out"
            )
    return _comparison(options)


def _comparison(options: Options) -> int:
    from regard.files.folders import write_text
    from regard_lab.report import html

    path = Path(options.folder)
    path = path / "results.json" if path.is_dir() else path
    target = options.out or str(path.with_name("report.html"))
    will_write(target)
    try:
        results = opened(content(path))
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; regard compare --out FOLDER makes one, regard train a run"
        ) from None
    except ValueError as error:
        raise DataError(f"{path} holds no results of a comparison: {error}; {_AGAIN}") from error
    if results.get("format") != FORMAT:
        raise DataError(f"{path} holds no results of a comparison that this version of regard reads; {_AGAIN}")
    write_text(Path(target), html.render(results, options.language))
    console().print(target, markup=False)
    return 0


def _run(options: Options) -> int:
    from regard.files.folders import write_text
    from regard_lab.report import run as report

    screen = console(machine=options.json)
    target = options.out or str(Path(options.folder) / "report.html")
    will_write(target)
    results = report.measure(
        [options.folder, *options.beside],
        limit=32 if options.limit is None else options.limit,
        threshold=options.threshold,
        device=options.device,
        trust=options.trust,
        tell=tell,
    )
    write_text(Path(target), report.render(results))
    screen.print(table(*report.columns(results), rows=report.rows(results)))
    for line in report.notes(results):
        screen.print(line, markup=False)
    screen.print(target, markup=False)
    if options.json:
        emit({**results, "page": target})
    return 0
