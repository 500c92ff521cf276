"""Charts of a comparison as interactive figures, each with the table of the numbers that it shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b4c9a", "#7f7f7f", "#8c2d04", "#1b7837")
"""Okabe and Ito's palette, which people with colour-blindness can tell apart, and four more"""
DASHES = ("solid", "dash", "dot", "dashdot")
LN2 = 0.6931471805599453
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
    return [
        quality_against_speed(results),
        loss_curves(results),
        recall(results),
        cost(results, "both", "Forward + backward over length"),
        cost(results, "forward", "Forward over length"),
        decoding(results, "microseconds", "Decoding time per token", "microseconds per token"),
        decoding(results, "state_bytes", "Decode state", "bytes"),
    ]


def quality_against_speed(results: Results) -> Chart:
    figure = _figure("training tokens per second", "validation bits per byte (lower is better)")
    rows = []
    for at, entry in enumerate(results["entries"]):
        bits, speed = entry["text"]["bits_per_byte"], entry["text"]["tokens_per_second"]
        error = {"array": [bits["high"] - bits["middle"]], "arrayminus": [bits["middle"] - bits["low"]], "type": "data"}
        marker = {"size": 12, "color": _colour(at)}
        figure.add_scatter(
            x=[speed], y=[bits["middle"]], error_y=error, name=entry["spec"], marker=marker, mode="markers"
        )
        rows.append((entry["spec"], f"{speed:,.0f}", *_interval(bits, ".4f")))
    for at, baseline in enumerate(results["baselines"]):
        bits = baseline["bits_per_byte"]
        side = ("top right", "top left")[at % 2]  # so that two that are nearly equal can be read
        figure.add_hline(y=bits["middle"], line_dash="dot", annotation_text=baseline["name"], annotation_position=side)
        rows.append((baseline["name"], "", *_interval(bits, ".4f")))
    columns = ("specification", "tokens/s", "bits per byte", "95 % interval")
    caption = (
        f"Bars are 95 % bootstrap intervals over {results['unit']}s and seeds; dotted lines are baselines without "
        "attention."
    )
    return Chart("quality", "Quality against speed", caption, figure, columns, rows)


def loss_curves(results: Results) -> Chart:
    figure = _figure("training tokens", "training loss, bits per token")
    rows = []
    for at, entry in enumerate(results["entries"]):
        for seed, curve in enumerate(entry["text"]["curves"]):
            x, y = [tokens for tokens, _ in curve], [loss / LN2 for _, loss in curve]
            line = {"color": _colour(at), "dash": DASHES[seed % len(DASHES)]}
            named = entry["spec"] if seed == 0 else f"{entry['spec']}, seed {seed}"
            figure.add_scatter(x=x, y=y, name=named, line=line, mode="lines")
            rows += [(entry["spec"], str(seed), f"{a:,}", f"{b:.4f}") for a, b in zip(x, y, strict=True)]
    columns = ("specification", "seed", "tokens", "bits per token")
    caption = "Mean loss over the steps since the point before, on text. The same batches in the same order for all."
    return Chart("loss", "Loss curves", caption, figure, columns, rows)


def recall(results: Results) -> Chart:
    figure = _figure("", "recall accuracy")
    rows = []
    for at, entry in enumerate(results["entries"]):
        hits = entry["recall"]["accuracy"]
        error = {"array": [hits["high"] - hits["middle"]], "arrayminus": [hits["middle"] - hits["low"]], "type": "data"}
        figure.add_bar(
            x=[entry["spec"]], y=[hits["middle"]], error_y=error, marker_color=_colour(at), name=entry["spec"]
        )
        rows.append(
            (entry["spec"], *_interval(hits, ".1%"), ", ".join(f"{seed:.1%}" for seed in entry["recall"]["seeds"]))
        )
    figure.add_hline(y=results["recall_chance"], line_dash="dot", annotation_text="guessing a value")
    figure.update_layout(showlegend=False, yaxis_range=[0, 1.05])
    task = results["config"]["recall"]
    caption = (
        f"Multi-query associative recall: {task['num_pairs']} pairs in {task['length']} tokens, vocabulary "
        f"{task['vocab_size']}; the share of questions answered with the right value."
    )
    return Chart(
        "recall", "Exact recall", caption, figure, ("specification", "accuracy", "95 % interval", "seeds"), rows
    )


def cost(results: Results, kind: str, title: str) -> Chart:
    figure = _figure("tokens", "seconds of the attention of all layers", logarithmic=True)
    rows = []
    for at, entry in enumerate(results["entries"]):
        found = [row for row in entry["cost"] if row["kind"] == kind]
        x, y = [row["length"] for row in found], [row["seconds"] for row in found]
        figure.add_scatter(x=x, y=y, name=entry["spec"], line={"color": _colour(at)}, mode="lines+markers")
        cross = entry["crossover"][kind]
        for row in found:
            default = row["default_seconds"]
            rows.append(
                (
                    entry["spec"],
                    f"{row['length']:,}",
                    f"{row['seconds']:.5f}",
                    f"{row['low']:.5f} to {row['high']:.5f}",
                    "" if default is None else f"{default:.5f}",
                    f"from {cross:,}" if cross else "",
                )
            )
    columns = (
        "specification", "tokens", "seconds (median)", "quartiles", "default allocation", "faster than softmax",
    )  # fmt: skip
    caption = (
        "All specifications were timed in turns in one process under fixed memory allocation; medians. The crossover "
        "is the shortest measured length from which a specification stays faster than exact attention."
    )
    return Chart(f"cost-{kind}", title, caption, figure, columns, rows)


def decoding(results: Results, field: str, title: str, unit: str) -> Chart:
    figure = _figure("tokens before", unit, logarithmic=True)
    rows = []
    for at, entry in enumerate(results["entries"]):
        x, y = [row["length"] for row in entry["decode"]], [row[field] for row in entry["decode"]]
        figure.add_scatter(x=x, y=y, name=entry["spec"], line={"color": _colour(at)}, mode="lines+markers")
        rows += [(entry["spec"], f"{a:,}", f"{b:,.1f}") for a, b in zip(x, y, strict=True)]
    caption = "One token after this many, in a stream; all attention layers together, one sequence."
    return Chart(f"decode-{field}", title, caption, figure, ("specification", "tokens before", unit), rows)


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


def _interval(estimate: Mapping[str, Any], form: str) -> tuple[str, str]:
    """The value, and its interval if it has one."""
    if estimate["low"] is None:
        return format(estimate["middle"], form), ""
    return format(estimate["middle"], form), f"{format(estimate['low'], form)} to {format(estimate['high'], form)}"


def table(results: Results) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The summary: one row for each specification and baseline."""
    ties = results["ties"]
    rows: list[tuple[str, ...]] = []
    for entry in results["entries"]:
        spec, bits, hits = entry["spec"], entry["text"]["bits_per_byte"], entry["recall"]["accuracy"]
        last = entry["decode"][-1] if entry["decode"] else None
        cross = entry["crossover"]["both"]
        longest = max((row["length"] for row in entry["cost"] if row["kind"] == "both"), default=0)
        rows.append(
            (
                spec,
                f"{bits['middle']:.3f}{' =' if spec in ties['text']['specs'] else ''}",
                f"{hits['middle']:.1%}{' =' if spec in ties['recall']['specs'] else ''}",
                f"{entry['text']['tokens_per_second']:,.0f}",
                f"{entry['text']['peak_bytes'] / 2**20:,.0f}",
                f"{last['microseconds']:,.0f}" if last else "no state",
                f"{last['state_bytes'] / 1024:,.0f}" if last else "no state",
                "reference"
                if set(entry["layers"]) == {"softmax"}
                else f"{cross:,}"
                if cross
                else f"not by {longest:,}",
                f"{entry['parameters']:,}",
            )
        )
    empty = ("",) * 7
    rows += [(b["name"], f"{b['bits_per_byte']['middle']:.3f}", *empty) for b in results["baselines"]]
    return columns(results), rows


def columns(results: Results) -> tuple[str, ...]:
    """The heads of the summary table."""
    longest = max((row["length"] for entry in results["entries"] for row in entry["decode"]), default=0)
    return (
        "specification", "bits/byte", "recall", "train tok/s", "peak MiB", f"us/token at {longest:,}",
        f"state KiB at {longest:,}", "faster from", "parameters",
    )  # fmt: skip


def tie_note(results: Results) -> str:
    """What the equals sign in the table means, and what one seed is worth."""
    note = f"= cannot be told from the best of its column (95 % bootstrap over {results['unit']}s and seeds)."
    seeds = results["config"]["seeds"]
    if seeds < 3:
        count = "One seed" if seeds == 1 else f"{seeds} seeds"
        note += f" {count}: trainings differ by chance too; --seeds 3 measures by how much."
    return note
