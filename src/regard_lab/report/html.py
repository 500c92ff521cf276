"""A comparison as one self-contained HTML file that opens offline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.files.folders import write_text
from regard_lab.benchmark.language import Language, Words
from regard_lab.report import _page, attention_map
from regard_lab.report.charts import charts
from regard_lab.report.summary import needs, notes, recommendation, steps, subject, table, tie_note


def render(results: Mapping[str, Any], language: Language = "en") -> str:
    """The page: recommendation, advice by need, summary, charts with their data, pictures of attention, how to
    reproduce.
    """
    say = Words(language)
    columns, rows = table(results, say)
    drawn = [
        {
            "name": chart.name,
            "title": chart.title,
            "caption": chart.caption,
            "columns": chart.columns,
            "rows": chart.rows,
            "legend": chart.keys,
            "beside": chart.beside,
            "json": _page.script(chart.figure),
        }
        for chart in charts(results, say)
    ]
    pictures = [
        {
            "name": _named(entry, picture["layer"], say),
            "uri": attention_map.data_uri(picture["matrix"]),
            **attention_map.describe(picture["matrix"]),
        }
        for entry in results["entries"]
        for picture in entry["pictures"]
    ]
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
        "charts": drawn,
        "pictures": pictures,
    }
    return _page.render("report.html", shown, language)


def _named(entry: Mapping[str, Any], layer: int, say: Words) -> str:
    """A layer, and its mechanism where layers differ."""
    mechanism = entry["layers"][layer]
    named = say("{spec}, layer {layer}", spec=entry["spec"], layer=layer)
    return named + ("" if mechanism == entry["spec"] else f" ({mechanism})")


def write(results: Mapping[str, Any], path: Path, language: Language = "en") -> None:
    """Write the page.

    Raises:
        ResourceError: it cannot be written.
    """
    write_text(path, render(results, language))
