"""Charts of what was timed or counted over the length: cost of attention, decoding, and the state."""

from collections.abc import Mapping, Sequence
from typing import Any

from regard_lab.benchmark.language import Words
from regard_lab.report import axes
from regard_lab.report.figure import Chart, Results, between, colour, empty, escaped, key, symbol
from regard_lab.report.summary import marked


def cost(results: Results, kind: str, say: Words) -> Chart:
    """Seconds of the attention of all layers, forward or both ways."""
    entries = results["entries"]
    timings = [[row for row in entry["cost"] if row["kind"] == kind] for entry in entries]
    x = {"title": {"text": say("tokens")}} | axes.at_lengths([row["length"] for own in timings for row in own])
    bounds = [row[bound] for own in timings for row in own for bound in ("low", "high")]
    figure = empty(x, {"title": {"text": say("time of the attention of all layers")}} | axes.seconds(bounds))
    rows = []
    for at, (entry, own) in enumerate(zip(entries, timings, strict=True)):
        _draw(figure, entry["spec"], at, own, [row["seconds"] for row in own], _bars(own, "seconds"))
        cross = entry["crossover"][kind]
        rows += [
            (
                entry["spec"],
                f"{row['length']:,}",
                marked(f"{row['seconds']:.5f}", row.get("untrusted")),
                between((row["low"], row["high"]), ".5f", say),
                say("from {length:,}", length=cross) if cross else "",
            )
            for row in own
        ]
    heads = ("specification", "tokens", "seconds (median)", "interval", "faster than softmax")
    caption = say(
        "All specifications were timed in turns in one process under fixed memory allocation: medians with their "
        "intervals. The crossover is the shortest measured length from which a specification stays faster than exact "
        "attention. Open marks: the machine was busy, and the timing cannot be trusted."
    )
    title = say("Forward + backward over length" if kind == "both" else "Forward over length")
    return Chart(f"cost-{kind}", title, caption, figure, tuple(map(say, heads)), rows, _keys(entries))


def decoding(results: Results, field: str, say: Words) -> Chart:
    """Time per token, or bytes of the state, after so many tokens."""
    entries, timed = results["entries"], field == "microseconds"
    found = [entry["decode"] for entry in entries]
    x = {"title": {"text": say("tokens before")}} | axes.at_lengths([row["length"] for own in found for row in own])
    scale = 1e-6 if timed else 1
    values = [[row[field] * scale for row in own] for own in found]
    every = [value for own in values for value in own]
    figure = empty(
        x,
        {"title": {"text": say("time per token" if timed else "state")}}
        | (axes.seconds(every) if timed else axes.nbytes(every)),
    )
    rows = []
    for at, (entry, own) in enumerate(zip(entries, found, strict=True)):
        _draw(figure, entry["spec"], at, own, values[at], _bars(own, field, scale) if timed else None, timed=timed)
        for row in own:
            shown = marked(f"{row[field]:,.1f}", timed and row.get("untrusted"))
            interval = (between((row["low"], row["high"]) if "low" in row else None, ",.1f", say),) if timed else ()
            rows.append((entry["spec"], f"{row['length']:,}", shown, *interval))
    heads = ("specification", "tokens before", *(("microseconds per token", "interval") if timed else ("bytes",)))
    caption = say("One token after this many, in a stream; all attention layers together, one sequence.")
    caption += " " + say(
        "Open marks: the machine was busy, and the timing cannot be trusted."
        if timed
        else "Counted, so that it has no spread."
    )
    title = say("Decoding time per token" if timed else "Decode state")
    return Chart(f"decode-{field}", title, caption, figure, tuple(map(say, heads)), rows, _keys(entries))


def _draw(
    figure: Any,
    name: str,
    at: int,
    rows: Sequence[Mapping[str, Any]],
    y: Sequence[float],
    bars: Mapping[str, Any] | None,
    *,
    timed: bool = True,
) -> None:
    doubted = [timed and bool(row.get("untrusted")) for row in rows]
    figure.add_scatter(
        x=[row["length"] for row in rows],
        y=y,
        error_y=bars,
        name=escaped(name),
        meta=name,
        line={"color": colour(at)},
        marker={"symbol": [f"{symbol(at)}-open" if one else symbol(at) for one in doubted], "size": 8},
        mode="lines+markers",
    )


def _keys(entries: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [key(entry["spec"], at) for at, entry in enumerate(entries)]


def _bars(rows: Sequence[Mapping[str, Any]], field: str, scale: float = 1.0) -> dict[str, Any] | None:
    """The intervals of timings; a version of regard that measured none of decoding wrote none."""
    if any("low" not in row for row in rows):
        return None
    above = [scale * (row["high"] - row[field]) for row in rows]
    below = [scale * (row[field] - row["low"]) for row in rows]
    return {"array": above, "arrayminus": below, "type": "data", "thickness": 1}
