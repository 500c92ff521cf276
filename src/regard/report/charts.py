"""Charts of a comparison as interactive figures, each with the table of the numbers that it shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from regard.benchmark.config import MARK
from regard.benchmark.measures import Measure, taken
from regard.report.summary import marked

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b4c9a", "#7f7f7f", "#8c2d04", "#1b7837")
"""Okabe and Ito's palette, which people with colour-blindness can tell apart, and four more"""
DASHES = ("solid", "dash", "dot", "dashdot")
LN2 = 0.6931471805599453
_DOUBTED = f"Open circles, and {MARK} in the table: the machine was busy, and the figure cannot be trusted."
Results = Mapping[str, Any]


@dataclass(frozen=True)
class Chart:
    """A figure, what it says in one sentence, and its data."""

    name: str
    title: str
    caption: str
    figure: go.Figure
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def charts(results: Results) -> list[Chart]:
    """Every chart of a report."""
    measures = taken(results["task"], results["expected"]["steps"])
    first = measures[0]
    drawn = [quality_against_speed(results, first), loss_curves(results, first)]
    drawn += [accuracy(results, measure) for measure in measures if measure.metric == "accuracy"]
    drawn.append(cost(results, "both", "Forward + backward over length"))
    drawn.append(cost(results, "forward", "Forward over length"))
    if first.causal:
        drawn.append(decoding(results, "microseconds", "Decoding time per token", "microseconds per token"))
        drawn.append(decoding(results, "state_bytes", "Decode state", "bytes"))
    return drawn


def quality_against_speed(results: Results, measure: Measure) -> Chart:
    better = "" if measure.larger_is_better else " (lower is better)"
    figure = _figure("training tokens per second", f"validation {measure.noun}{better}")
    rows = []
    for at, entry in enumerate(results["entries"]):
        value, speed = entry[measure.name][measure.metric], entry[measure.name]["tokens_per_second"]
        timing = entry[measure.name].get("speed") or {}
        marker = {"size": 12, "color": _colour(at), "symbol": _symbol(timing)}
        figure.add_scatter(
            x=[speed],
            y=[value["middle"]],
            error_x=_bar({"middle": speed, **timing}) if timing else None,
            error_y=_bar(value),
            name=entry["spec"],
            marker=marker,
            mode="markers",
        )
        rows.append((entry["spec"], *_speed(speed, timing), *_interval(value, ".4f")))
    for at, baseline in enumerate(results["baselines"]):
        value, speed = baseline[measure.metric], baseline["tokens_per_second"]
        side = ("top right", "top left")[at % 2]  # so that two that are nearly equal can be read
        figure.add_hline(y=value["middle"], line_dash="dot", annotation_text=baseline["name"], annotation_position=side)
        rows.append((baseline["name"], *_speed(speed, baseline.get("speed") or {}), *_interval(value, ".4f")))
    columns = ("specification", "tokens/s", "tokens/s, interval", measure.noun, "95 % interval")
    caption = f"Bars are 95 % bootstrap intervals over {results['unit']}s and seeds, and intervals of the speed" + (
        "; dotted lines are baselines without attention." if results["baselines"] else "."
    )
    return Chart("quality", "Quality against speed", caption, figure, columns, rows)


def loss_curves(results: Results, measure: Measure) -> Chart:
    unit = "example" if measure.name == "classification" else "token"
    figure = _figure(f"training {unit}s", f"training loss, bits per {unit}")
    rows = []
    for at, entry in enumerate(results["entries"]):
        for seed, curve in enumerate(entry[measure.name]["curves"]):
            x, y = [tokens for tokens, _ in curve], [loss / LN2 for _, loss in curve]
            line = {"color": _colour(at), "dash": DASHES[seed % len(DASHES)]}
            named = entry["spec"] if seed == 0 else f"{entry['spec']}, seed {seed}"
            figure.add_scatter(x=x, y=y, name=named, line=line, mode="lines")
            rows += [(entry["spec"], str(seed), f"{a:,}", f"{b:.4f}") for a, b in zip(x, y, strict=True)]
    columns = ("specification", "seed", f"{unit}s", f"bits per {unit}")
    caption = (
        f"Mean loss over the steps since the point before, on {measure.subject}. The same batches in the same order "
        "for all."
    )
    return Chart("loss", "Loss curves", caption, figure, columns, rows)


def accuracy(results: Results, measure: Measure) -> Chart:
    figure = _figure("", f"{measure.name} accuracy")
    bars = [(entry["spec"], entry[measure.name], _colour(at)) for at, entry in enumerate(results["entries"])]
    if measure.name == "classification":
        bars += [(baseline["name"], baseline, COLOURS[7]) for baseline in results["baselines"]]
    rows = []
    for name, result, colour in bars:
        value = result["accuracy"]
        figure.add_bar(x=[name], y=[value["middle"]], error_y=_bar(value), marker_color=colour, name=name)
        rows.append((name, *_interval(value, ".1%"), ", ".join(f"{seed:.1%}" for seed in result["seeds"])))
    figure.update_layout(showlegend=False, yaxis_range=[0, 1.05])
    columns = ("specification", "accuracy", "95 % interval", "seeds")
    if measure.name == "classification":
        caption = (
            "The share of validation examples that were given the right class. The baselines have no attention; those "
            "that are trained had as many steps as fit into the time of a specification, timed in turns."
        )
        return Chart("classification", "Accuracy", caption, figure, columns, rows)
    figure.add_hline(y=results["recall_chance"], line_dash="dot", annotation_text="guessing a value")
    task = results["config"]["recall"]
    caption = (
        f"Multi-query associative recall: {task['num_pairs']} pairs in {task['length']} tokens, vocabulary "
        f"{task['vocab_size']}; the share of questions answered with the right value."
    )
    return Chart("recall", "Exact recall", caption, figure, columns, rows)


def cost(results: Results, kind: str, title: str) -> Chart:
    figure = _figure("tokens", "seconds of the attention of all layers", logarithmic=True)
    rows = []
    for at, entry in enumerate(results["entries"]):
        timings = [row for row in entry["cost"] if row["kind"] == kind]
        x, y = [row["length"] for row in timings], [row["seconds"] for row in timings]
        figure.add_scatter(
            x=x,
            y=y,
            error_y=_bars(timings, "seconds"),
            name=entry["spec"],
            line={"color": _colour(at)},
            marker={"symbol": [_symbol(row) for row in timings]},
            mode="lines+markers",
        )
        cross = entry["crossover"][kind]
        for row in timings:
            default = row["default_seconds"]
            rows.append(
                (
                    entry["spec"],
                    f"{row['length']:,}",
                    marked(f"{row['seconds']:.5f}", row.get("untrusted")),
                    f"{row['low']:.5f} to {row['high']:.5f}",
                    "" if default is None else f"{default:.5f}",
                    f"from {cross:,}" if cross else "",
                )
            )
    columns = (
        "specification", "tokens", "seconds (median)", "interval", "default allocation", "faster than softmax",
    )  # fmt: skip
    caption = (
        "All specifications were timed in turns in one process under fixed memory allocation; medians with their "
        f"intervals. The crossover is the shortest measured length from which a specification stays faster than exact "
        f"attention. {_DOUBTED}"
    )
    return Chart(f"cost-{kind}", title, caption, figure, columns, rows)


def decoding(results: Results, field: str, title: str, unit: str) -> Chart:
    figure = _figure("tokens before", unit, logarithmic=True)
    rows, timed = [], field == "microseconds"
    for at, entry in enumerate(results["entries"]):
        found = entry["decode"]
        x, y = [row["length"] for row in found], [row[field] for row in found]
        figure.add_scatter(
            x=x,
            y=y,
            error_y=_bars(found, field) if timed else None,
            name=entry["spec"],
            line={"color": _colour(at)},
            marker={"symbol": [_symbol(row) if timed else "circle" for row in found]},
            mode="lines+markers",
        )
        for row in found:
            shown = marked(f"{row[field]:,.1f}", timed and row.get("untrusted"))
            between = (f"{row['low']:,.1f} to {row['high']:,.1f}" if "low" in row else "",) if timed else ()
            rows.append((entry["spec"], f"{row['length']:,}", shown, *between))
    columns = ("specification", "tokens before", unit, *(("interval",) if timed else ()))
    caption = "One token after this many, in a stream; all attention layers together, one sequence."
    if timed:
        caption = f"{caption} {_DOUBTED}"
    return Chart(f"decode-{field}", title, caption, figure, columns, rows)


def _figure(x: str, y: str, *, logarithmic: bool = False) -> go.Figure:
    figure = go.Figure()
    kind = "log" if logarithmic else "linear"
    figure.update_layout(
        template="plotly_white",
        margin={"l": 70, "r": 20, "t": 20, "b": 55},
        height=420,
        xaxis={"title": {"text": x}, "type": kind if x else None},
        yaxis={"title": {"text": y}, "type": kind},
        legend={"orientation": "h", "y": -0.22},
    )
    return figure


def _colour(at: int) -> str:
    return COLOURS[at % len(COLOURS)]


def _bar(estimate: Mapping[str, Any]) -> dict[str, Any] | None:
    """The interval as an error bar, if there is one."""
    if estimate["low"] is None:
        return None
    middle = estimate["middle"]
    return {"array": [estimate["high"] - middle], "arrayminus": [middle - estimate["low"]], "type": "data"}


def _bars(timings: Sequence[Mapping[str, Any]], field: str) -> dict[str, Any] | None:
    """The intervals of timings as error bars; a version of regard that measured none of decoding wrote none."""
    if any("low" not in row for row in timings):
        return None
    above = [row["high"] - row[field] for row in timings]
    below = [row[field] - row["low"] for row in timings]
    return {"array": above, "arrayminus": below, "type": "data"}


def _symbol(timing: Mapping[str, Any]) -> str:
    """An open circle where the timing cannot be trusted."""
    return "circle-open" if timing.get("untrusted") else "circle"


def _speed(speed: float | None, timing: Mapping[str, Any]) -> tuple[str, str]:
    """Tokens per second and their interval; empty for what was not trained."""
    if speed is None:
        return "", ""
    between = f"{timing['low']:,.0f} to {timing['high']:,.0f}" if timing else ""
    return marked(f"{speed:,.0f}", timing.get("untrusted")), between


def _interval(estimate: Mapping[str, Any], form: str) -> tuple[str, str]:
    """The value, and its interval if it has one."""
    if estimate["low"] is None:
        return format(estimate["middle"], form), ""
    return format(estimate["middle"], form), f"{format(estimate['low'], form)} to {format(estimate['high'], form)}"
