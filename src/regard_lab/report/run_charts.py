"""Charts of what runs decide for themselves: depth against quality and operations, exits, and spans of heads."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from regard_lab.benchmark.depth_costs import pareto
from regard_lab.report.figure import BASELINE, SYMBOLS, UPRIGHT, Chart, Key, colour, empty, escaped, faint, symbol

Run = Mapping[str, Any]
Point = Mapping[str, Any]
AXES = {"depth": "blocks that a token takes, mean", "operations": "million operations of a token"}
"""field of a point -> the axis, in millions for operations"""
MEASURES = {"bits_per_byte": "bits per byte", "nats_per_token": "nats per token"}
CELL, FRAME = 34, 90
"""pixels of a row of a heat map, and of everything around it"""


def charts(runs: Sequence[Run]) -> list[Chart]:
    """Every chart of a report; of each only where a run has something for it."""
    drawn = []
    if sum(len(points(run)) for run in runs) > 1:
        drawn += [quality(runs, "depth"), quality(runs, "operations")]
    drawn += [taken(run, at) for at, run in enumerate(runs) if run["used"]["taken"]]
    drawn += [calibrated(run, at) for at, run in enumerate(runs) if run["calibration"]]
    drawn += [spans(run, at) for at, run in enumerate(runs) if run["spans"]]
    return drawn


def measure_of(runs: Sequence[Run]) -> str:
    """The field of the loss that is drawn: of text bits per byte, else nats per token."""
    return "nats_per_token" if runs[0]["used"]["bits_per_byte"] is None else "bits_per_byte"


def points(run: Run) -> list[Point]:
    """All points of a run; the one that is used first."""
    return [run["used"], *run["exits"], *run["fixed"]]


def named(run: Run, point: Point) -> str:
    """What a point is, beside the name of its run."""
    if point is run["used"]:
        return "as used" if point["threshold"] is None else f"as used, threshold {point['threshold']:g}"
    if point["threshold"] is not None:
        return f"threshold {point['threshold']:g}"
    return f"{point['blocks']} {run['unit']} for every token"


def quality(runs: Sequence[Run], field: str) -> Chart:
    """Loss over mean depth or over counted operations, with the line of what nothing beats."""
    metric, scale = measure_of(runs), 1e-6 if field == "operations" else 1.0
    label = f"validation {MEASURES[metric]} (lower is better)"
    across = {"title": {"text": AXES[field]}, "nticks": 6, "tickangle": 0, "rangemode": "nonnegative"}
    figure = empty(across, {"title": {"text": label}})
    everything = [(run, point) for run in runs for point in points(run)]
    places = [(point[field] * scale, point[metric]) for _, point in everything]
    best = pareto(places)
    keys = [Key("nothing here is better (Pareto)", BASELINE, "┈")]
    x, y = ([places[at][axis] for at in best] for axis in (0, 1))
    line = {"color": BASELINE, "dash": "dot", "width": 2}
    figure.add_scatter(x=x, y=y, name=keys[0].name, meta=keys[0].name, line=line, mode="lines", hoverinfo="skip")
    for at, run in enumerate(runs):
        keys += _drawn(figure, run, at, field, metric, scale)
    rows = [
        (
            run["name"],
            named(run, point),
            f"{point['depth']:.2f}",
            f"{point['operations']:,.0f}",
            f"{point[metric]:.4f}",
            f"{point['accuracy']:.1%}",
            "yes" if number in best else "",
        )
        for number, (run, point) in enumerate(everything)
    ]
    heads = ("run", "what", "mean blocks", "operations", MEASURES[metric], "right", "Pareto")
    title = "Quality against mean depth" if field == "depth" else "Quality against counted operations"
    caption = "One training each."
    if field == "operations":
        caption = (
            "Multiply-adds of matrix products, counted twice, of one more token behind half of an example, with what "
            "decides about its depth; fixed depths have nothing to decide. " + caption
        )
    return Chart(f"quality-{field}", title, caption, figure, heads, rows, keys)


def _drawn(figure: go.Figure, run: Run, at: int, field: str, metric: str, scale: float) -> list[Key]:
    """The points of one run: its exits as a line, fixed depths as another, and what is used as a mark of its own."""
    keys = []
    hue = colour(at)
    lines = (("exits", "exits", "solid", "circle"), ("fixed", f"fixed {run['unit']}", "dash", "square-open"))
    for kind, words, dash, mark in lines:
        if run[kind]:
            name = f"{run['name']}: {words}"
            _trace(figure, run, run[kind], name, field, metric, scale).update(
                mode="lines+markers",
                line={"color": hue, "dash": dash, "width": 1.5},
                marker={"symbol": mark, "size": 7},
            )
            keys.append(Key(name, hue, "●" if kind == "exits" else "□"))
    name = f"{run['name']}: as used"
    marker = {"symbol": "star" if run["used"]["taken"] else symbol(1 + at), "size": 14, "color": hue}
    _trace(figure, run, [run["used"]], name, field, metric, scale).update(mode="markers", marker=marker)
    return [*keys, Key(name, hue, "★" if run["used"]["taken"] else SYMBOLS[symbol(1 + at)])]


def _trace(figure: go.Figure, run: Run, some: Sequence[Point], name: str, field: str, metric: str, scale: float) -> Any:
    """Draw points; the trace that they are, to be given its looks."""
    figure.add_scatter(
        x=[point[field] * scale for point in some],
        y=[point[metric] for point in some],
        text=[named(run, point) for point in some],
        name=escaped(name),
        meta=name,
        hovertemplate="%{text}<br>%{x:.4g}, %{y:.4f}<extra></extra>",
    )
    return figure.data[-1]


def taken(run: Run, at: int) -> Chart:
    """Histogram of exits, or of ponder steps; the numbers of every threshold below it."""
    used, unit = run["used"], run["unit"]
    numbers = list(range(1, len(used["taken"]) + 1))
    figure = empty(
        {"title": {"text": f"{unit} that a token took"}, "tickmode": "linear", "dtick": max(1, len(numbers) // 12)},
        {"title": {"text": "share of tokens"}, "tickformat": ".0%", "rangemode": "tozero"},
    )
    shown = [used]
    if run["exits"]:
        shown += [run["exits"][place] for place in sorted({0, len(run["exits"]) // 2, len(run["exits"]) - 1})]
        shown = [one for place, one in enumerate(shown) if not place or one["threshold"] != used["threshold"]]
    keys = []
    for place, point in enumerate(shown):
        name, hue = named(run, point), colour(at + place)
        pattern = {"shape": ("", "/", "x", ".")[place]}
        figure.add_bar(
            x=numbers, y=_shares(point), name=escaped(name), meta=name, marker={"color": hue, "pattern": pattern},
            hovertemplate="%{x}: %{y:.1%}<extra>" + escaped(name) + "</extra>",
        )  # fmt: skip
        keys.append(Key(name, hue, ("■", "▨", "▩", "▦")[place]))
    rows = [
        (named(run, point), f"{point['depth']:.2f}", *(f"{count:,}" for count in point["taken"]))
        for point in (used, *run["exits"])
    ]
    heads = ("what", "mean blocks", *(f"{number}" for number in numbers))
    ponders = unit == "steps"
    caption = (
        f"{sum(used['taken']):,} tokens of the validation part: how many {unit} each took"
        + (" until it halted." if ponders else " before it left.")
        + " Numbers: tokens by " + unit + "."
    )  # fmt: skip
    title = f"{'Ponder steps' if ponders else 'Exits'} of {run['name']}"
    return Chart(f"taken-{at}", title, caption, figure, heads, rows, keys)


def _shares(point: Point) -> list[float]:
    total = sum(point["taken"]) or 1
    return [count / total for count in point["taken"]]


def calibrated(run: Run, at: int) -> Chart:
    """Loss of the calibration over mean depth, with the limit; as regard calibrate stored them."""
    found = run["calibration"]
    curve, chosen = found["curve"], found["calibrated"]
    certified = set(chosen["certified"])
    figure = empty(
        {"title": {"text": AXES["depth"]}, "nticks": 6, "tickangle": 0},
        {"title": {"text": f"mean loss ({found['loss']})"}, "rangemode": "tozero"},
    )
    figure.add_hline(y=chosen["risk"], line=UPRIGHT)
    keys = []
    for name, kept, mark in (("certified", True, "circle"), ("not certified", False, "circle-open")):
        some = [one for one in curve if (one["threshold"] in certified) is kept]
        figure.add_scatter(
            x=[one["layers"] for one in some],
            y=[one["loss"] for one in some],
            text=[f"threshold {one['threshold']:g}, p-value {one['p_value']:.3g}" for one in some],
            name=name,
            meta=name,
            hovertemplate="%{text}<br>%{x:.2f} blocks, loss %{y:.4f}<extra></extra>",
            mode="markers",
            marker={"symbol": mark, "size": 9, "color": colour(at)},
        )
        keys.append(Key(name, colour(at), "●" if kept else "○"))
    rows = [
        (
            f"{one['threshold']:g}",
            f"{one['loss']:.4f}",
            f"{one['p_value']:.3g}",
            f"{one['layers']:.2f}",
            f"{one['right']:.1%}",
            "yes" if one["threshold"] in certified else "",
            *(f"{count:,}" for count in one["exits"]),
        )
        for one in curve
    ]
    blocks = [f"left after {number}" for number in range(1, found["layers"] + 1)]
    heads = ("threshold", "mean loss", "p-value", "mean blocks", "right", "certified", *blocks)
    caption = f"{found['guarantee']} Of other text, and of longer passages, nothing is promised. Dotted: the risk."
    return Chart(f"calibrated-{at}", f"What was calibrated for {run['name']}", caption, figure, heads, rows, keys)


def spans(run: Run, at: int) -> Chart:
    """A heat map of spans: layers down, heads across."""
    found = run["spans"]
    layers = sorted({one["layer"] for one in found})
    heads = list(range(max(one["head"] for one in found) + 1))
    longest = max(one["span"] for one in found)
    cells: list[list[float | None]] = [[None] * len(heads) for _ in layers]
    for one in found:
        cells[layers.index(one["layer"])][one["head"]] = one["span"]
    plain = {"showgrid": False, "zeroline": False}
    figure = empty(
        {"title": {"text": "head"}, "tickmode": "linear", "dtick": max(1, len(heads) // 12), **plain},
        {"title": {"text": "layer"}, "autorange": "reversed", "tickvals": list(range(len(layers))), **plain},
        height=FRAME + CELL * max(len(layers), 4),
    )
    figure.update_yaxes(ticktext=[str(layer) for layer in layers])
    figure.add_heatmap(
        x=heads,
        y=list(range(len(layers))),
        z=cells,
        zmin=0,
        zmax=max(longest, 1.0),  # spans below one token see nothing more than those of 0
        colorscale=[[0, faint(colour(0))], [1, colour(0)]],
        texttemplate="%{z:.1f}" if len(heads) <= 12 else "",
        hovertemplate="layer %{y}, head %{x}: %{z:.1f} tokens<extra></extra>",
        xgap=2,
        ygap=2,
        colorbar={"thickness": 12, "title": {"text": "tokens"}},
    )
    rows = [
        (
            str(one["layer"]),
            str(one["head"]),
            one["mechanism"],
            f"{one['span']:.2f}",
            f"{one['low']:.2f} to {one['high']:.2f}",
            str(one["max_span"]),
            str(one["ramp"]),
            str(one["kept"]),
        )
        for one in found
    ]
    columns = ("layer", "head", "attention", "span", "of tokens", "longest allowed", "ramp", "state keeps")
    caption = (
        "Tokens back that a head sees at full weight, z; its view then fades out over the ramp. Of heads whose tokens "
        "choose, the mean over tokens, and beside it what a tenth of them stays below and above."
    )
    return Chart(f"spans-{at}", f"Spans of {run['name']}, by layer and head", caption, figure, columns, rows)
