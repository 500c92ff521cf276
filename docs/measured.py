"""What was recorded with a mechanism, beside exact attention: counted costs, recall, comparisons, claims."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import costs
import retrieval

from evidence import claims
from evidence.claims import _page as claims_report
from regard_lab.benchmark.measures import TASKS
from regard_lab.report import summary

HERE = Path(__file__).parent / "recorded"
COMPARISONS = HERE / "comparisons"
"""written by `regard compare SPEC... --out FOLDER`, one results.json for each under a name of its own"""
EXACT = costs.EXACT
HALF = 0.005
"""of the last digit of a share that is shown"""


@dataclass(frozen=True)
class Line:
    """A measure: what it says here and of exact attention, and whether here wins, loses or is level."""

    measure: str
    here: str
    exact: str
    verdict: str

    def row(self) -> str:
        """Of a Markdown table, in which a specification may have a bar."""
        return "| " + " | ".join(text.replace("|", "\\|") for text in vars(self).values()) + " |"


def section(name: str) -> list[str]:
    """The cost and the evidence of a mechanism, as Markdown."""
    lines = ["## What it costs", "", *cost_table(name), "", "## Where it wins and loses", ""]
    found = [*recalled(name), *in_comparisons(name)]
    if found:
        head = ["| measured | here | `softmax`, same run | |", "|---|---|---|---|"]
        lines += [*head, *(one.row() for one in found), ""]
    if name == EXACT:
        lines += ["Exact attention is what every other mechanism is measured against, on its page.", ""]
    elif not recalled(name):
        lines += ["Not in the recorded [recall task](../../retrieval.md), which is causal.", ""]
    if name != EXACT and not in_comparisons(name):
        lines += ["No comparison with it is recorded: [`regard compare`](../../comparing.md) makes one.", ""]
    told = claimed(name)
    lines += [f"- [{one['title']}](../claims.md#{one['name']}): **{claims_report.verdict(one)}**" for one in told]
    lines += [""] if told else ["No [claim](../claims.md) was measured with it.", ""]
    return lines


def cost_table(name: str) -> list[str]:
    """Counted operations, numbers written and bytes kept, beside those of exact attention."""
    here, exact = costs.recorded(name)
    short, long = costs.LENGTHS
    lines = ["| counted, without a clock | here | `softmax` | |", "|---|---|---|---|"]
    for at, length in enumerate(costs.LENGTHS):
        one, other = here["operations"][at], exact["operations"][at]
        lines.append(f"| operations at {length:,} tokens | {one:.2f} | {other:.2f} | {compared(one, other)} |")
    for key, what in (("written", "numbers written"), ("peak", "most numbers alive")):
        one, other = here[key][1], exact[key][1]
        lines.append(f"| {what} at {long:,} tokens | {one:.1f} | {other:.1f} | {compared(one, other)} |")
    for at, length in enumerate(costs.KEPT):
        if here["state_bytes"] is not None:
            one, other = here["state_bytes"][at], exact["state_bytes"][at]
            lines.append(f"| bytes kept after {length:,} tokens | {one:,} | {other:,} | {compared(one, other)} |")
    given = ", ".join(f"{key}={value}" for key, value in here["options"].items())
    form = "causal" if here["causal"] else "bidirectional"
    lines += [
        "",
        f"A {form} forward pass of {costs.HEADS} heads of width {costs.DIM} in float32, with "
        f"{f'`{given}`' if given else 'the default options'}. Operations are those of matrix products, over those of "
        f"exact attention on the visible pairs. Numbers written, and alive at one time, are per number of q, k and v. "
        f"What a clock says is another matter: at {short:,} tokens and less torch's fused `softmax` may be faster than "
        "anything with fewer operations.",
    ]
    return lines


def compared(here: float, exact: float, *, tolerance: float = 0.05) -> str:
    """Which of two costs is smaller."""
    if abs(here - exact) <= tolerance * exact:
        return "level"
    return "wins" if here < exact else "loses"


@cache
def trained() -> dict[str, Any]:
    """Every recorded training of the recall task."""
    return retrieval.recorded()


def names_in(spec: str) -> set[str]:
    """The mechanisms of a specification that is written as one."""
    return {spec.partition("(")[0].strip()} if " / " not in spec and " + " not in spec else set()


def recalled(name: str) -> list[Line]:
    """Recall after the same training, over seeds: a win or a loss where the ranges do not touch."""
    found = []
    for pairs in dict.fromkeys(row["pairs"] for row in trained()["rows"]):
        shares: dict[str, list[float]] = {}
        for row in trained()["rows"]:
            if row["pairs"] == pairs:
                shares.setdefault(row["spec"], []).append(row["accuracy"])
        exact = shares.get(EXACT)
        for spec, values in shares.items():
            if exact and name in names_in(spec) and spec != EXACT:
                below, above = max(values) < min(exact) - HALF, min(values) > max(exact) + HALF
                verdict = "loses" if below else "wins" if above else "level"
                what = f"[recall](../../retrieval.md) of {pairs} pairs, `{spec}`"
                found.append(Line(what, share(values), share(exact), verdict))
    return found


def share(values: list[float]) -> str:
    """The mean, and the range over seeds."""
    text = f"{fmean(values):.2f}"
    return text if max(values) - min(values) < HALF else f"{text} ({min(values):.2f} to {max(values):.2f})"


def comparisons() -> Iterator[tuple[str, dict[str, Any]]]:
    """The recorded comparisons, by the name of their file."""
    for path in sorted(COMPARISONS.glob("**/*.json")):
        yield path.stem, json.loads(path.read_text(encoding="utf-8"))


def in_comparisons(name: str) -> list[Line]:
    """The first measure and the training speed in every recorded comparison that has it beside exact attention."""
    found = []
    for _, results in comparisons():
        entries = {entry["spec"]: entry for entry in results["entries"]}
        exact, first = entries.get(EXACT), TASKS[results["task"]][0]
        tied = results["ties"][first.name]["specs"]
        for spec, entry in entries.items():
            if exact is None or name not in names_in(spec) or spec == EXACT:
                continue
            here, other = entry[first.name][first.metric]["middle"], exact[first.name][first.metric]["middle"]
            better = here > other if first.larger_is_better else here < other
            verdict = "level" if {spec, EXACT} <= set(tied) else "wins" if better else "loses"
            where = f"{first.column}, `{spec}`. {summary.subject(results)}"
            found.append(Line(where, f"{here:.3f}", f"{other:.3f}", verdict))
            speed, exact_speed = entry[first.name]["tokens_per_second"], exact[first.name]["tokens_per_second"]
            word = {"wins": "loses", "loses": "wins", "level": "level"}[compared(speed, exact_speed)]
            found.append(Line(f"trained tokens a second, `{spec}`", f"{speed:,.0f}", f"{exact_speed:,.0f}", word))
    return found


def claimed(name: str) -> list[dict[str, Any]]:
    """The recorded claims whose settings name the mechanism."""
    return [each for each in records() if any(name in named(text) for text in texts(each["settings"]))]


@cache
def records() -> list[dict[str, Any]]:
    """Every claim that is recorded, in the order of their names."""
    paths = [HERE / "claims" / f"{name}.json" for name in claims.names()]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def texts(value: object) -> Iterator[str]:
    """Every text in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


def named(text: str) -> set[str]:
    """The mechanisms that a setting may name, by layer and by head."""
    return {part.strip().partition("(")[0].partition(":")[0] for side in text.split("/") for part in side.split("+")}
