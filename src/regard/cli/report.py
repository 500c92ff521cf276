"""Write the report of a comparison again, from its results.json."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from regard.benchmark.config import FORMAT
from regard.checksums import opened
from regard.cli._output import console
from regard.errors import DataError
from regard.reading import content

_AGAIN = (
    "give the regard compare command that made them again, with its words: what its jobs measured is read back, and "
    "they are written anew"
)


@dataclass(frozen=True)
class Options:
    """Whose report."""

    folder: tyro.conf.Positional[str]
    """folder of a comparison, or its results.json"""
    out: str | None = None
    """HTML file; by default report.html beside the results"""
    language: Literal["en", "zh"] = "en"
    """English or Chinese"""


def run(options: Options) -> int:
    """Render and say where it is."""
    import jinja2

    from regard.report import html
    from regard.training.files import write_text

    path = Path(options.folder)
    path = path / "results.json" if path.is_dir() else path
    try:
        results = opened(content(path), earlier=True)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; regard compare --out FOLDER makes one") from None
    except ValueError as error:
        raise DataError(f"{path} holds no results of a comparison: {error}; {_AGAIN}") from error
    if results.get("format") != FORMAT:
        raise DataError(f"{path} holds no results of a comparison that this version of regard reads; {_AGAIN}")
    target = Path(options.out) if options.out else path.with_name("report.html")
    try:
        page = html.render(results, options.language)
    except (KeyError, TypeError, IndexError, jinja2.UndefinedError) as error:
        raise DataError(f"{path} is not whole: {type(error).__name__}: {error}; {_AGAIN}") from error
    write_text(target, page)
    console().print(str(target), markup=False)
    return 0
