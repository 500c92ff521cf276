"""What all charts of a comparison share: colours, marks, the empty figure, and rows of intervals with their names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from regard_lab.benchmark.language import Words

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c76a9e", "#b07d00", "#3596cf", "#8a63c9", "#a8552a", "#4d8b31")
"""after Okabe and Ito, whom people with colour-blindness can tell apart; each has a contrast of 3 and more with white
and with the dark page"""
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = {"circle": "●", "square": "■", "diamond": "◆", "triangle-up": "▲", "triangle-down": "▼", "cross": "✚"}
"""marks of the plot, and what stands for them in text"""
BASELINE = "#7f7f7f"
"""no specification has it"""
UPRIGHT = {"color": BASELINE, "width": 1.5, "dash": "dot"}
ROW, EDGES = 48, 90
"""pixels of a row of intervals, and of everything around all rows"""
Results = Mapping[str, Any]


@dataclass(frozen=True)
class Key:
    """An entry of the legend: every trace of that name."""

    name: str
    colour: str
    symbol: str


@dataclass(frozen=True)
class Chart:
    """A figure, what it says in one sentence, and its data.

    Attributes:
        name: of the element that it is drawn into.
        title, caption: in words.
        figure: without a legend, which the page draws below it; None: only the table is shown.
        columns, rows: every number in it; no rows: no table.
        keys: the legend.
    """

    name: str
    title: str
    caption: str
    figure: Any
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    keys: list[Key] = field(default_factory=list)


def empty(x: Mapping[str, Any], y: Mapping[str, Any], *, height: int = 380) -> go.Figure:
    """Axes without anything on them; labels get the room that they need."""
    figure = go.Figure()
    axis = {"automargin": True, "title": {"standoff": 12}}
    figure.update_layout(
        template="plotly_white",
        margin={"l": 20, "r": 16, "t": 16, "b": 20},
        height=height,
        showlegend=False,
        xaxis=axis,
        yaxis=axis,
    )
    figure.update_xaxes(**x)
    figure.update_yaxes(**y)
    return figure


def colour(at: int) -> str:
    """Of the specification at this place."""
    return COLOURS[at % len(COLOURS)]


def symbol(at: int) -> str:
    """Of the specification at this place."""
    return list(SYMBOLS)[at % len(SYMBOLS)]


def key(name: str, at: int) -> Key:
    """The legend of the specification at this place."""
    return Key(name, colour(at), SYMBOLS[symbol(at)])


def faint(hue: str) -> str:
    """The colour of a band around a line of this colour."""
    red, green, blue = (int(hue[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.18)"


@dataclass(frozen=True)
class Row:
    """A name, with values or intervals on its line.

    Attributes:
        name: above the line.
        points: single values, drawn small.
        middle: drawn large; None: nothing.
        intervals: drawn as lines, the first one thick.
    """

    name: str
    colour: str
    symbol: str
    points: Sequence[float]
    middle: float | None
    intervals: Sequence[tuple[float, float] | None]


def lines(rows: Sequence[Row], x: Mapping[str, Any], mark: float) -> go.Figure:
    """A line for each row, from the top down, with the name above it: names of any length collide with nothing.

    Args:
        rows: at least one.
        x: the axis.
        mark: where every row has a dotted upright, such as no difference.
    """
    hidden = {"showticklabels": False, "showgrid": False, "zeroline": False, "range": [-len(rows) + 0.4, 0.8]}
    figure = empty(x, hidden, height=EDGES + ROW * len(rows))
    for at, row in enumerate(rows):
        figure.add_shape(type="line", x0=mark, x1=mark, y0=-at - 0.3, y1=-at + 0.22, line=UPRIGHT)
        for which, interval in enumerate(row.intervals):
            if interval is not None:
                y = [-at - 0.16 * which] * 2
                line = {"color": row.colour, "width": 1.5 if which else 4}
                figure.add_scatter(x=list(interval), y=y, name=row.name, line=line, mode="lines", hoverinfo="x")
        small = {"color": row.colour, "size": 6, "symbol": "line-ns-open"}
        if row.points:
            y = [-at] * len(row.points)
            figure.add_scatter(x=list(row.points), y=y, name=row.name, marker=small, mode="markers", hoverinfo="x")
        if row.middle is not None:
            large = {"color": row.colour, "size": 11, "symbol": row.symbol}
            figure.add_scatter(x=[row.middle], y=[-at], name=row.name, marker=large, mode="markers", hoverinfo="x+name")
        figure.add_annotation(
            text=escaped(row.name), x=0, xref="paper", xanchor="left", y=-at + 0.42, showarrow=False, font={"size": 12}
        )  # fmt: skip
    return figure


def between(interval: Sequence[float] | None, form: str, say: Words) -> str:
    """An interval in words; empty if there is none."""
    if interval is None:
        return ""
    return say("{low} to {high}", low=format(interval[0], form), high=format(interval[1], form))


def escaped(name: str) -> str:
    """A name that the drawing library takes for no markup."""
    return name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
