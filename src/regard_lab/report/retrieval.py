"""Recall of trained models against the bytes that they keep, as text, and as one self-contained HTML file."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from regard_lab.report import _page
from regard_lab.report.figure import UPRIGHT, Chart, colour, empty, escaped, key

Results = Mapping[str, Any]


def merge(several: Sequence[Results]) -> dict[str, Any]:
    """Results for other mechanisms or pairs, else of one plan, as one; controls that several trained are shown once.

    Example:
        >>> one = {"rows": [{"spec": "a", "pairs": 4, "seed": 0}], "controls": [], "plan": {}, "seconds": 1.0}
        >>> len(merge([one, one])["rows"])
        1
    """
    rows = {(row["spec"], row["pairs"], row["seed"]): row for one in several for row in one["rows"]}
    controls = {control["title"]: control for one in several for control in one["controls"]}
    seconds = sum(one["seconds"] for one in several)
    return {**several[0], "rows": list(rows.values()), "controls": list(controls.values()), "seconds": seconds}


def by_mechanism(results: Results) -> list[dict[str, Any]]:
    """One entry for each mechanism: bytes of the state, and accuracies by pairs, most accurate with the first first."""
    specs = dict.fromkeys(row["spec"] for row in results["rows"])
    entries = []
    for spec in specs:
        spec_rows = [row for row in results["rows"] if row["spec"] == spec]
        shares = {pairs: [row["accuracy"] for row in spec_rows if row["pairs"] == pairs] for pairs in _pairs(results)}
        entries.append({"spec": spec, "state_bytes": spec_rows[0]["state_bytes"], "shares": shares})
    first = _pairs(results)[0]
    return sorted(entries, key=lambda one: -fmean(one["shares"][first] or [0.0]))


def columns(results: Results) -> tuple[str, ...]:
    """The heads of `rows`."""
    return ("mechanism", "state bytes", *(f"{pairs} pairs" for pairs in _pairs(results)))


def rows(results: Results) -> list[tuple[str, ...]]:
    """Every mechanism: the mean accuracy over seeds, and its range."""
    return [
        (
            one["spec"],
            "" if one["state_bytes"] is None else f"{one['state_bytes']:,}",
            *(_share(shares) for shares in one["shares"].values()),
        )
        for one in by_mechanism(results)
    ]


def notes(results: Results) -> list[str]:
    """Notes on the numbers, and on controls that missed."""
    plan = results["plan"]
    lines = [
        f"Share of questions answered right on new sequences: associative recall, {plan['length']} tokens, "
        f"{plan['vocab_size']} different; two layers of width {plan['dim']}, one head, no MLP, {plan['steps']} steps "
        f"of {plan['batch_size']} sequences. State: of both layers after {plan['length']} tokens in float32. A guess "
        "among the stored values is right once in as many as there are pairs. What is low has not learned it in these "
        "steps; whether it could is another question."
    ]
    missed = [one for one in results["controls"] if not one["reached"]]
    return lines + [f"CONTROL MISSED: {one['title']}: {one['values']}" for one in missed]


def chart(results: Results) -> Chart:
    """Accuracy over bytes, one colour for each number of pairs."""
    drawn = empty(
        {"title": {"text": "bytes of the state"}, "type": "log"},
        {"title": {"text": "share that is right"}, "range": [0, 1.08]},
        height=620,
    )
    keys = []
    for at, pairs in enumerate(_pairs(results)):
        entries = [one for one in by_mechanism(results) if one["state_bytes"] and one["shares"][pairs]]
        keys.append(key(f"{pairs} pairs", at))
        drawn.add_scatter(
            x=[one["state_bytes"] for one in entries],
            y=[fmean(one["shares"][pairs]) for one in entries],
            text=[escaped(one["spec"]) for one in entries],
            hovertemplate="%{text}<br>%{x:,} bytes<br>%{y:.3f}<extra></extra>",
            name=keys[at].name,
            meta=keys[at].name,
            mode="markers+text",
            textposition="top center",
            textfont={"size": 9},
            marker={"size": 10, "color": colour(at)},
        )
        drawn.add_hline(y=1 / pairs, line=UPRIGHT)
    title, caption = "Accuracy over bytes of the state", "Dotted: a guess among the stored values."
    return Chart("recall", title, caption, drawn, columns(results), rows(results), keys)


def render(results: Results) -> str:
    """The page."""
    return _page.measured("Exact recall against the bytes of the state", notes(results), [chart(results)], results)


def _pairs(results: Results) -> list[int]:
    return list(dict.fromkeys(row["pairs"] for row in results["rows"]))


def _share(shares: Sequence[float]) -> str:
    if not shares:
        return ""
    if len(shares) == 1:
        return f"{shares[0]:.3f}"
    return f"{fmean(shares):.3f} ({min(shares):.3f} to {max(shares):.3f})"
