"""The one rule by which every claim is judged."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evidence.claims._base import LEAST_SEEDS, Control, Finding
from regard_lab.benchmark import student
from regard_lab.benchmark.student import LEVEL, POWER

Verdict = Literal["holds", "does not hold", "inconclusive"]


@dataclass(frozen=True)
class Checked:
    """A control and what its seeds gave."""

    title: str
    expected: float
    tolerance: float
    values: tuple[float, ...]
    reached: bool


@dataclass(frozen=True)
class Judged:
    """A finding and what its seeds gave.

    Attributes:
        low, high: the 95 % interval of the mean over seeds (Student's t).
        smallest_effect: a mean that lies this far beyond a bound is told from it about four times in five.
        states: whether the claim says this, so that it decides about the claim.
    """

    title: str
    at_least: float | None
    at_most: float | None
    values: tuple[float, ...]
    mean: float
    deviation: float
    low: float
    high: float
    smallest_effect: float
    states: bool
    verdict: Verdict


@dataclass(frozen=True)
class Conclusion:
    """The verdict on a claim, and its reason."""

    verdict: Verdict
    reason: str
    controls: tuple[Checked, ...]
    findings: tuple[Judged, ...]


def conclude(
    controls: Sequence[Control],
    findings: Sequence[Finding],
    observed: Sequence[Mapping[str, float]],
    *,
    least_seeds: int = LEAST_SEEDS,
) -> Conclusion:
    """Judge a claim by the values of its seeds.

    A finding holds if the whole 95 % interval of its mean lies within the bounds, does not hold if the whole interval
    lies outside, and is inconclusive otherwise. The claim holds if all findings that state it do, and does not hold if
    one of them does not; other findings decide nothing. A control that any seed misses, or fewer than `least_seeds`
    seeds, makes it inconclusive whatever the findings are.

    Example:
        >>> finding = Finding(value="gain", title="gain", at_least=0.1)
        >>> conclude([], [finding], [{"gain": 0.3}, {"gain": 0.32}, {"gain": 0.31}]).verdict
        'holds'
        >>> conclude([], [finding], [{"gain": 0.0}, {"gain": 0.3}, {"gain": 0.1}]).verdict
        'inconclusive'
    """
    assert any(finding.states for finding in findings), "no finding states the claim"
    checked = tuple(_check(control, [values[control.value] for values in observed]) for control in controls)
    judged = tuple(judge(finding, [values[finding.value] for values in observed]) for finding in findings)

    def deciding(verdict: Verdict) -> list[Judged]:
        return [one for one in judged if one.states and one.verdict == verdict]

    def named(found: Sequence[Judged]) -> str:
        return "; ".join(one.title for one in found)

    missed = "; ".join(one.title for one in checked if not one.reached)
    if missed:
        return Conclusion("inconclusive", f"a control missed its known answer: {missed}", checked, judged)
    if len(observed) < least_seeds:
        return Conclusion("inconclusive", f"{len(observed)} of at least {least_seeds} seeds", checked, judged)
    if outside := deciding("does not hold"):
        return Conclusion("does not hold", f"outside what the claim says: {named(outside)}", checked, judged)
    if open_ones := deciding("inconclusive"):
        effects = "; ".join(f"{one.title} (could have been seen: {one.smallest_effect:.2g})" for one in open_ones)
        return Conclusion("inconclusive", f"cannot be told from the bound: {effects}", checked, judged)
    return Conclusion("holds", "the controls reached their answers, and all is as the claim says", checked, judged)


def judge(finding: Finding, values: Sequence[float]) -> Judged:
    """One finding, by itself."""
    count = len(values)
    mean = math.fsum(values) / count
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (count - 1)) if count > 1 else math.inf
    error = deviation / math.sqrt(count)
    tail, power = (student.quantile(p, count - 1) if count > 1 else math.inf for p in ((1 + LEVEL) / 2, POWER))
    half = max(tail * error if error else 0.0, finding.resolution)
    low, high = mean - half, mean + half
    floor = -math.inf if finding.at_least is None else finding.at_least
    ceiling = math.inf if finding.at_most is None else finding.at_most
    verdict: Verdict = "inconclusive"
    if math.isfinite(mean) and floor <= low and high <= ceiling:
        verdict = "holds"
    elif math.isfinite(mean) and (high < floor or ceiling < low):
        verdict = "does not hold"
    smallest = max((tail + power) * error if error else 0.0, finding.resolution)
    return Judged(
        title=finding.title,
        at_least=finding.at_least,
        at_most=finding.at_most,
        values=tuple(values),
        mean=mean,
        deviation=deviation,
        low=low,
        high=high,
        smallest_effect=smallest,
        states=finding.states,
        verdict=verdict,
    )


def _check(control: Control, values: Sequence[float]) -> Checked:
    reached = bool(values) and all(abs(value - control.expected) <= control.tolerance for value in values)
    return Checked(control.title, control.expected, control.tolerance, tuple(values), reached)
