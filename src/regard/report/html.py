"""A comparison as one self-contained HTML file that opens offline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import plotly.offline

from regard.report import attention_map
from regard.report.charts import charts
from regard.report.summary import steps, subject, table, tie_note
from regard.training.files import write_text


def render(results: Mapping[str, Any]) -> str:
    """The page: recommendation, summary, charts with their data, pictures of attention, how to reproduce."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("regard.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    columns, rows = table(results)
    drawn = [
        {
            "name": chart.name,
            "title": chart.title,
            "caption": chart.caption,
            "columns": chart.columns,
            "rows": chart.rows,
            "json": str(chart.figure.to_json()).replace("<", "\\u003c"),  # nothing in it can end the script
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
    return environment.get_template("report.html").render(
        results=results,
        columns=columns,
        rows=rows,
        note=tie_note(results),
        subject=subject(results),
        steps=steps(results),
        charts=drawn,
        pictures=pictures,
        plotly=plotly.offline.get_plotlyjs(),
    )


def _named(entry: Mapping[str, Any], layer: int) -> str:
    """A layer, and its mechanism where layers differ."""
    own = entry["layers"][layer]
    return f"{entry['spec']}, layer {layer}" + ("" if own == entry["spec"] else f" ({own})")


def write(results: Mapping[str, Any], path: Path) -> None:
    """Write the page.

    Raises:
        ResourceError: it cannot be written.
    """
    write_text(path, render(results))
