"""Measured claims as text, and as one self-contained HTML file that opens offline."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from evidence.claims import sources
from regard.files.folders import write_text
from regard_lab.report import _page
from regard_lab.report.figure import COLOURS

Results = Mapping[str, Any]
COLUMNS = ("", "the claim says", "mean", "over seeds", "95 % interval", "smallest effect", "verdict")


def number(value: float | None) -> str:
    """Four digits; what was not finite says so."""
    return "not finite" if value is None else f"{value:.4g}"


def span(values: Sequence[float | None]) -> str:
    """From the least to the most."""
    finite = [value for value in values if value is not None]
    if len(finite) < len(values):
        return "not finite"
    return number(finite[0]) if len(set(finite)) == 1 else f"{number(min(finite))} to {number(max(finite))}"


def bounds(at_least: float | None, at_most: float | None) -> str:
    """The bounds of a finding, in words."""
    if at_least is not None and at_most is not None:
        return f"{number(at_least)} to {number(at_most)}"
    return f"at least {number(at_least)}" if at_least is not None else f"at most {number(at_most)}"


def verdict(results: Results) -> str:
    """The verdict on a claim, and whether it had another one that was withdrawn."""
    return f"{results['verdict']} (withdrawn)" if results["withdrawn"] else str(results["verdict"])


def notes(results: Results) -> list[str]:
    """What a reader must know of a record: what was withdrawn or changed after a look, what is stale, its sources."""
    found = []
    if withdrawn := results["withdrawn"]:
        found.append(f"Withdrawn: the verdict was '{withdrawn['verdict']}'. {withdrawn['why']}")
    if revised := results["revised_after_look"]:
        seeds = "These seeds had not been seen." if revised["fresh_seeds"] else "These seeds, or some, had been seen."
        found.append(f"Revised after a look: {revised['what']} {seeds}")
    made = results["sources"]
    if results["timed"] and made["package"] != sources(results["name"])["package"]:
        found.append("Stale: these times are those of older code.")
    if made["claim"] is None:
        found.append("Sources: not recorded.")
    else:
        commit = f"commit {made['commit'][:12]}{made['commit'][40:]}" if made["commit"] else "outside of a checkout"
        found.append(f"Sources: {commit}, the claim's file {made['claim'][:12]} (SHA-256).")
    return found


def rows(results: Results) -> list[tuple[str, ...]]:
    """The controls of a claim, then its findings, under `COLUMNS`."""
    controls = [
        (
            f"control: {one['title']}",
            f"{number(one['expected'])} ± {number(one['tolerance'])}",
            "",
            span(one["values"]),
            "",
            "",
            "reached" if one["reached"] else "MISSED",
        )
        for one in results["controls"]
    ]
    findings = [
        (
            one["title"] if one["states"] else f"beside the claim: {one['title']}",
            bounds(one["at_least"], one["at_most"]),
            number(one["mean"]),
            span(one["values"]),
            span([one["low"], one["high"]]),
            number(one["smallest_effect"]),
            "withdrawn" if results["withdrawn"] else one["verdict"],
        )
        for one in results["findings"]
    ]
    return controls + findings


def figures(results: Results) -> list[dict[str, str]]:
    """Every plot of a claim: the mean over seeds as a line or bars, and from least to most as a band or whiskers."""
    drawn = []
    for plot in results["plots"]:
        labels = dict.fromkeys(
            label for one in results["observations"] for label in one["curves"].get(plot["name"], {})
        )
        figure = go.Figure()
        for at, label in enumerate(labels):
            colour = COLOURS[at % len(COLOURS)]
            curves = [one["curves"][plot["name"]][label] for one in results["observations"]]
            points: dict[Any, list[float]] = {}  # a seed may lack some
            for where, y in (point for curve in curves for point in zip(*curve, strict=True)):
                points.setdefault(where, []).extend([] if y is None else [y])
            x = list(points) if any(isinstance(where, str) for where in points) else sorted(points)
            columns = [points[where] or [math.nan] for where in x]
            middle = [sum(column) / len(column) for column in columns]
            low, high = [min(column) for column in columns], [max(column) for column in columns]
            if x and isinstance(x[0], str):
                spread = {
                    "type": "data",
                    "array": [a - b for a, b in zip(high, middle, strict=True)],
                    "arrayminus": [a - b for a, b in zip(middle, low, strict=True)],
                }
                figure.add_bar(x=x, y=middle, error_y=spread, name=label, marker_color=colour)
                continue
            group = {"legendgroup": label, "hoverinfo": "skip", "showlegend": False, "mode": "lines"}
            edge = {"width": 0, "color": colour}
            figure.add_scatter(x=x, y=high, line=edge, **group)
            figure.add_scatter(x=x, y=low, line=edge, fill="tonexty", fillcolor=_faint(colour), **group)
            line = {"color": colour}
            figure.add_scatter(x=x, y=middle, name=label, legendgroup=label, line=line, mode="lines+markers")
        figure.update_layout(
            template="plotly_white",
            margin={"l": 70, "r": 20, "t": 20, "b": 55},
            height=380,
            barmode="group",
            xaxis={"title": {"text": plot["x"]}, **({"type": "log"} if plot["log_x"] else {})},
            yaxis={"title": {"text": plot["y"]}, "type": "log" if plot["log_y"] else "linear"},
            legend={"orientation": "h", "y": -0.22},
            showlegend=True,
        )
        drawn.append(
            {
                "name": f"{results['name']}-{plot['name']}".replace(" ", "-"),
                "title": plot["title"],
                "json": _page.script(figure),
            }
        )
    return drawn


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.15)"


def render(claims: Sequence[Results]) -> str:
    """The page: one summary line for each claim, then each with its numbers and plots."""
    made = {"rows": rows, "figures": figures, "notes": notes, "label": verdict}
    shown = [{**one, **{name: make(one) for name, make in made.items()}} for one in claims]
    return _page.render("claims.html", {"claims": shown, "columns": COLUMNS})


def write(claims: Sequence[Results], path: Path) -> None:
    """Write the page.

    Raises:
        ResourceError: it cannot be written.
    """
    write_text(path, render(claims))
