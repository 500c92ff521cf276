"""Write the report of a comparison again, from its results.json."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from regard.cli._output import console
from regard.errors import DataError


@dataclass(frozen=True)
class Options:
    """Whose report."""

    folder: tyro.conf.Positional[str]
    """folder of a comparison, or its results.json"""
    out: str | None = None
    """HTML file; by default report.html beside the results"""


def run(options: Options) -> int:
    """Render and say where it is."""
    from regard.report import html

    path = Path(options.folder)
    path = path / "results.json" if path.is_dir() else path
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; regard compare --out FOLDER makes one") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} holds no results of a comparison: {error}") from error
    if not isinstance(results, dict) or "recommendation" not in results:
        raise DataError(f"{path} holds no results of a comparison; regard compare --out FOLDER makes one")
    target = Path(options.out) if options.out else path.with_name("report.html")
    html.write(results, target)
    console().print(str(target), markup=False)
    return 0
