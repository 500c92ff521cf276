"""How every page is made: from a template that escapes what it shows, with the drawing library inside."""

from collections.abc import Mapping

import jinja2
import plotly.graph_objects as go
import plotly.offline

from regard_lab.benchmark.language import Language


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


def script(figure: go.Figure) -> str:
    """A figure as the script of a page can hold it: nothing in it can end the script."""
    return str(figure.to_json()).replace("<", "\\u003c")
