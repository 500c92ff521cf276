"""Losses under cache policies against the bytes that they keep, as text, and as one self-contained HTML file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from regard.files.folders import write_text
from regard_lab.report import _page
from regard_lab.report.figure import BASELINE, COLOURS

Results = Mapping[str, Any]
KINDS = {
    "text": "text, nats per token",
    "known": "pass key asked for before the text, nats per token of it",
    "unknown": "pass key asked for after the text, nats per token of it",
}


def columns() -> tuple[str, ...]:
    """The heads of `rows`."""
    return ("policy", "bytes kept", "text, nats", "key known, nats", "found", "key unknown, nats", "found")


def rows(results: Results) -> list[tuple[str, ...]]:
    """Every policy and budget; losses with their difference from no policy."""
    full = results["rows"][0]
    shown: list[tuple[str, ...]] = []
    for row in results["rows"]:
        cells = [row["spec"] or "no policy", f"{row['state_bytes']:,}"]
        for kind in KINDS:
            loss = row[f"{kind}_nats"]
            cells.append(f"{loss:.3f}" if row is full else f"{loss:.3f} ({loss - full[f'{kind}_nats']:+.3f})")
            if kind != "text":
                cells.append(f"{row[f'{kind}_right']:.0%}")
        shown.append(tuple(cells))
    return shown


def rounding_rows(results: Results) -> list[tuple[str, ...]]:
    """Every rounding: nats per token in each quarter of the text."""
    return [(one["rounding"], *(f"{nats:.4f}" for nats in one["nats"])) for one in results["rounded"]]


ROUNDING_COLUMNS = ("state rounded to", "first quarter", "second", "third", "last quarter of the text, nats")


def notes(results: Results) -> list[str]:
    """What was measured, and whether the key says anything."""
    config, full = results["config"], results["rows"][0]
    lines = [
        f"{config['texts']} rows of text and {config['keys']} pass keys, each asked for before and after its text. "
        f"{config['context']} tokens are read and reduced, then {config['scored']} tokens of text, or the key, are "
        "scored. Bytes: of one row of the state behind what was read, at the precision that the model runs in."
    ]
    left = [budget for budget in config["budgets"] if budget >= config["context"]]
    if left:
        lines.append(f"Budgets of {', '.join(map(str, left))} slots hold all that was read: they are no policy.")
    lines += [f"{spec} is left out: {why}" for spec, why in results["left_out"].items()]
    if min(full["known_right"], full["unknown_right"]) < 1:
        lines.append(
            "Without a policy not every key is found: what is lost there is not the policy's, and a larger model or "
            "another text would say more."
        )
    return lines


def figure(results: Results) -> go.Figure:
    """Loss over bytes: text, and the key known and unknown; a colour for each policy, a line for none."""
    drawn = make_subplots(rows=1, cols=len(KINDS), subplot_titles=list(KINDS.values()))
    named = list(dict.fromkeys(row["policy"] for row in results["rows"]))
    for at, kind in enumerate(KINDS, 1):
        level = results["rows"][0][f"{kind}_nats"]
        drawn.add_shape(
            type="line",
            x0=0,
            x1=1,
            xref="x domain",
            y0=level,
            y1=level,
            line={"dash": "dot", "color": BASELINE},
            row=1,
            col=at,
        )
        for number, policy in enumerate(named):
            points = sorted(
                (row for row in results["rows"] if row["policy"] == policy), key=lambda row: row["state_bytes"]
            )
            drawn.add_scatter(
                x=[row["state_bytes"] for row in points],
                y=[row[f"{kind}_nats"] for row in points],
                text=[row["spec"] or "no policy" for row in points],
                hovertemplate="%{text}<br>%{x:,} bytes<br>%{y:.3f} nats<extra></extra>",
                name=policy,
                legendgroup=policy,
                showlegend=at == 1,
                mode="lines+markers",
                line={"color": BASELINE if policy == "none" else COLOURS[number % len(COLOURS)]},
                row=1,
                col=at,
            )
    drawn.update_xaxes(type="log", title={"text": "bytes kept"})
    drawn.update_layout(
        template="plotly_white",
        margin={"l": 60, "r": 20, "t": 50, "b": 60},
        height=520,
        legend={"orientation": "h", "y": -0.2},
    )
    return drawn


def render(results: Results) -> str:
    """The page."""
    shown = {
        "results": results,
        "columns": columns(),
        "rows": rows(results),
        "rounding_columns": ROUNDING_COLUMNS,
        "rounding_rows": rounding_rows(results),
        "notes": notes(results),
        "figure": _page.script(figure(results)),
    }
    return _page.render("cache.html", shown)


def write(results: Results, path: Path) -> None:
    """Write the page.

    Raises:
        ResourceError: it cannot be written.
    """
    write_text(path, render(results))
