"""A comparison as one self-contained HTML file that opens offline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.files.folders import write_text
from regard_lab.benchmark.language import Language, Words
from regard_lab.report import _page
from regard_lab.report.charts import charts
from regard_lab.report.summary import needs, notes, recommendation, steps, subject, table, tie_note


def render(results: Mapping[str, Any], language: Language = "en") -> str:
    """The page: recommendation, advice by need, summary, charts with their data, how to reproduce."""
    say = Words(language)
    columns, rows = table(results, say)
    short, why = recommendation(results, say)
    shown = {
        "say": say,
        "results": results,
        "short": short,
        "why": why,
        "needs": needs(results, say),
        "columns": columns,
        "rows": rows,
        "notes": [tie_note(results, say), *notes(results, say)],
        "subject": subject(results, say),
        "steps": steps(results, say),
        "charts": _page.sections(charts(results, say)),
    }
    return _page.render("report.html", shown, language)


def write(results: Mapping[str, Any], path: Path, language: Language = "en") -> None:
    """Write the page.

    Raises:
        ResourceError: it cannot be written.
    """
    write_text(path, render(results, language))
