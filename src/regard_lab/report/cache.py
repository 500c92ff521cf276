"""Losses under cache policies against the bytes that they keep, as text, and as one self-contained HTML file."""

from collections.abc import Mapping
from typing import Any

from regard_lab.report import _page
from regard_lab.report.figure import UPRIGHT, Chart, colour, empty, key, symbol

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


def charts(results: Results) -> list[Chart]:
    """Loss over bytes: text, and the key known and unknown; a colour for each policy, a dotted line for none."""
    named = list(dict.fromkeys(row["policy"] for row in results["rows"]))
    found = []
    for kind, loss in KINDS.items():
        drawn = empty({"type": "log", "title": {"text": "bytes kept"}}, {"title": {"text": loss}}, height=520)
        drawn.add_hline(y=results["rows"][0][f"{kind}_nats"], line=UPRIGHT)
        for at, policy in enumerate(named):
            points = [row for row in results["rows"] if row["policy"] == policy]
            points.sort(key=lambda row: row["state_bytes"])
            drawn.add_scatter(
                x=[row["state_bytes"] for row in points],
                y=[row[f"{kind}_nats"] for row in points],
                text=[row["spec"] or "no policy" for row in points],
                hovertemplate="%{text}<br>%{x:,} bytes<br>%{y:.3f} nats<extra></extra>",
                name=policy,
                meta=policy,
                mode="lines+markers",
                line={"color": colour(at)},
                marker={"symbol": symbol(at)},
            )
        keys = [key(policy, at) for at, policy in enumerate(named)]
        found.append(Chart(kind, f"Loss over bytes: {loss}", "Dotted: no policy.", drawn, (), [], keys))
    found.append(Chart("policies", "Every policy and budget", "", None, columns(), rows(results)))
    return found


def render(results: Results) -> str:
    """The page."""
    return _page.measured("Loss under cache policies against the bytes kept", notes(results), charts(results), results)
