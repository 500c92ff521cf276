"""A comparison as one self-contained HTML file that opens offline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.report import _page, attention_map
from regard.report.charts import charts
from regard.report.summary import notes, steps, subject, table, tie_note
from regard.training.files import write_text


def render(results: Mapping[str, Any]) -> str:
    """The page: recommendation, summary, charts with their data, pictures of attention, how to reproduce."""
    columns, rows = table(results)
    drawn = [
        {
            "name": chart.name,
            "title": chart.title,
            "caption": chart.caption,
            "columns": chart.columns,
            "rows": chart.rows,
            "json": _page.script(chart.figure),
        }
        for chart in charts(results)
    ]
    pictures = [
        {
            "name": _named(entry, picture["layer"]),
            "uri": attention_map.data_uri(picture["matrix"]),
            **attention_map.describe(picture["matrix"]),
        }
        for entry in results["entries"]
        for picture in entry["pictures"]
    ]
    shown = {
        "results": results,
        "columns": columns,
        "rows": rows,
        "note": " ".join([tie_note(results), *notes(results)]),
        "subject": subject(results),
        "steps": steps(results),
        "charts": drawn,
        "pictures": pictures,
    }
    return _page.render("report.html", shown)


def _named(entry: Mapping[str, Any], layer: int) -> str:
    """A layer, and its mechanism where layers differ."""
    mechanism = entry["layers"][layer]
    return f"{entry['spec']}, layer {layer}" + ("" if mechanism == entry["spec"] else f" ({mechanism})")


def write(results: Mapping[str, Any], path: Path) -> None:
    """Write the page.

    Raises:
        ResourceError: it cannot be written.
    """
    write_text(path, render(results))
