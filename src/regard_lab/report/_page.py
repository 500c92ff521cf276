"""How every page is made: from a template that escapes what it shows, with the drawing library inside."""

from collections.abc import Mapping, Sequence

import jinja2
import plotly.graph_objects as go
import plotly.offline

from regard_lab.benchmark.language import Language
from regard_lab.report.figure import Chart


def render(template: str, values: Mapping[str, object], language: Language = "en") -> str:
    """One self-contained HTML file that opens offline; the template also gets `plotly`, the library's source, and
    `lang`, the code of its language.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("regard_lab.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        **values, lang={"en": "en", "zh": "zh-CN"}[language], plotly=plotly.offline.get_plotlyjs()
    )


def measured(title: str, notes: Sequence[str], charts: Sequence[Chart], results: Mapping[str, object]) -> str:
    """The page of one measurement: notes, charts with their numbers, and everything as recorded."""
    shown = {"title": title, "notes": notes, "charts": sections(charts), "results": results}
    return render("measured.html", shown)


def sections(charts: Sequence[Chart]) -> list[dict[str, object]]:
    """Charts as `charts.html` takes them."""
    return [
        {**vars(chart), "legend": chart.keys, "json": None if chart.figure is None else script(chart.figure)}
        for chart in charts
    ]


def script(figure: go.Figure) -> str:
    """A figure as the script of a page can hold it: nothing in it can end the script."""
    return str(figure.to_json()).replace("<", "\\u003c")
