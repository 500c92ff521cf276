"""The conclusions from a comparison: bootstrap intervals, ties, and one recommendation with its reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from regard.benchmark.measures import TEXT, Measure

RESAMPLES = 2000
LEVEL = 0.95
LEARNED_RECALL = 0.9
"""recall that some specification must reach before differences in recall mean much: the positive control"""
CHEAPER_SHARE = 0.67
"""share of the chosen one's cost below which another is worth a sentence about long sequences"""


@dataclass(frozen=True)
class Estimate:
    """A ratio of sums with its interval: middle, low, high (95 %)."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Sample:
    """One specification's results: numerators and denominators, (seeds, units).

    Bits per byte: bits and bytes of every document. Accuracy: right answers and questions of every sequence.
    """

    top: Float[np.ndarray, "seeds units"]
    bottom: Float[np.ndarray, "seeds units"]

    def ratio(self, seeds: np.ndarray, units: np.ndarray) -> float:
        """The ratio of sums over some seeds and units."""
        return float(self.top[np.ix_(seeds, units)].sum() / self.bottom[np.ix_(seeds, units)].sum())

    @property
    def value(self) -> float:
        """The ratio of sums over everything."""
        return float(self.top.sum() / self.bottom.sum())


def estimates(samples: Mapping[str, Sample]) -> dict[str, Estimate]:
    """The value of every specification with its bootstrap interval over seeds and units (documents)."""
    draws = _draws(samples)
    return {name: Estimate(sample.value, *_interval(draws[name])) for name, sample in samples.items()}


def ties(samples: Mapping[str, Sample], *, larger_is_better: bool) -> tuple[str, list[str]]:
    """The best specification, and all that cannot be told from it (itself included).

    Every specification saw the same documents, so the bootstrap draws the same documents for all of them and looks at
    differences. A specification ties if the interval of its difference from the best holds 0.
    """
    sign = 1 if larger_is_better else -1
    best = max(samples, key=lambda name: sign * samples[name].value)
    draws = _draws(samples)
    tied = [
        name
        for name in samples
        if name == best
        or _interval(sign * (draws[best] - draws[name]))[0] <= 0
        or samples[name].value == samples[best].value
    ]
    return best, tied


def _draws(samples: Mapping[str, Sample]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    first = next(iter(samples.values()))
    seeds, units = first.top.shape
    picked_units = draw.integers(0, units, (RESAMPLES, units))
    values = {}
    for name, sample in samples.items():
        picked_seeds = draw.integers(0, seeds, (RESAMPLES, seeds))
        values[name] = np.array([sample.ratio(a, b) for a, b in zip(picked_seeds, picked_units, strict=True)])
    return values


def _interval(draws: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Standing:
    """The measurements of one specification that the recommendation looks at."""

    spec: str
    quality: float
    """bits per byte, or accuracy"""
    recall: float | None
    """None where only the quality counts"""
    tokens_per_second: float | None
    """None where the machine was busy while it was timed"""
    state_bytes: int | None
    cost: Mapping[int, float]
    """length -> seconds of forward + backward, where they can be trusted"""


@dataclass(frozen=True)
class Rival:
    """A model without attention that does as well as the best specification; better: with a real difference."""

    name: str
    quality: float
    better: bool


@dataclass(frozen=True)
class Recommendation:
    """One specification and why, in sentences derived from the measurements."""

    spec: str
    reason: str


def recommend(
    standings: Sequence[Standing],
    quality_ties: Sequence[str],
    recall_ties: Sequence[str] | None,
    *,
    length: int,
    measure: Measure = TEXT,
    floor: tuple[str, float] | None = None,
    chance: float = 0.0,
    rivals: Sequence[Rival] = (),
) -> Recommendation:
    """Among those that tie for the best quality and, where it counts, recall as well as the best, the fastest in
    training.

    If none of the ties on quality also ties on recall, quality decides and the reason says what is lost. A comparison
    whose models learned too little to tell says that first.

    Args:
        standings: every specification.
        quality_ties, recall_ties: those that cannot be told from the best, as `ties` says; no recall_ties where recall
            is not measured besides.
        length: tokens that the training speed was measured at.
        measure: the measure of quality.
        floor: name and quality of a model that only counts, which has to be beaten.
        chance: recall of guessing.
        rivals: other models that were trained for the same time.
    """
    by_name = {standing.spec: standing for standing in standings}
    good = [name for name in quality_ties if recall_ties is None or name in recall_ties]
    pool = good or list(quality_ties)
    sign = 1 if measure.larger_is_better else -1
    speeds = {name: speed for name in pool if (speed := by_name[name].tokens_per_second) is not None}
    timed = len(speeds) == len(pool)
    # A speed that cannot be trusted decides nothing, so the others' speeds do not either.
    chosen = by_name[max(pool, key=lambda name: speeds[name] if timed else sign * by_name[name].quality)]
    best = max(standings, key=lambda standing: sign * standing.quality)
    sentences: list[str] = []
    if floor is not None and sign * best.quality <= sign * floor[1]:
        sentences.append(
            f"no specification beats the {floor[0]} ({measure.shown(floor[1])}), so they were trained too little to "
            "choose by quality: give more steps or a larger budget"
        )
    rest = [name for name in quality_ties if name != chosen.spec]
    sentences.append(
        f"{measure.shown(chosen.quality)} "
        + (
            f"ties with the best ({_listed(rest)} cannot be told from it)"
            if rest
            else f"is the {'highest' if measure.larger_is_better else 'lowest'}"
            + (" of the specifications" if rivals else "")
        )
    )
    sentences += [
        f"without attention {rival.name} reached {measure.shown(rival.quality)} in the same time, "
        + ("which is better" if rival.better else "which cannot be told from the best")
        for rival in rivals
    ]
    sentences += _of_recall(standings, chosen, measure, chance, good=bool(good))
    others = [name for name in pool if name != chosen.spec]
    if others and timed:
        sentences.append(f"of those it trains fastest at {length} tokens ({speeds[chosen.spec]:,.0f} tokens/s)")
    elif others:
        sentences.append(
            "which of those trains fastest cannot be said: the machine was busy while they were timed, so this is the "
            "one of the best quality; compare again on a quiet machine"
        )
    longest = max(chosen.cost, default=0)
    cheaper = [
        s for s in standings if longest and s.cost.get(longest, float("inf")) < CHEAPER_SHARE * chosen.cost[longest]
    ]
    if cheaper:
        fastest = min(cheaper, key=lambda standing: standing.cost[longest])
        ratio = chosen.cost[longest] / fastest.cost[longest]
        sentences.append(
            f"for sequences of {longest:,} tokens look at {fastest.spec}: its attention is {ratio:.1f} times faster "
            f"there, at {measure.shown(fastest.quality)}"
            + ("" if fastest.recall is None else f" and {fastest.recall:.0%} recall")
        )
    reason = "; ".join(sentences)
    return Recommendation(chosen.spec, f"{reason[0].upper()}{reason[1:]}.")


def _of_recall(
    standings: Sequence[Standing], chosen: Standing, measure: Measure, chance: float, *, good: bool
) -> list[str]:
    """Whether recall was learned, and whether the chosen specification recalls as well as the best."""
    recalls = {s.spec: s.quality if measure.name == "recall" else s.recall for s in standings}
    known = {spec: recall for spec, recall in recalls.items() if recall is not None}
    if not known:
        return []
    best = max(known, key=lambda spec: known[spec])
    sentences: list[str] = []
    if known[best] < LEARNED_RECALL:
        sentences.append(
            f"recall says little yet: the best, {best}, reached {known[best]:.0%}, guessing gives {chance:.0%}, "
            f"and a task that was learned shows at least {LEARNED_RECALL:.0%} somewhere"
        )
    elif good and chosen.recall is not None:
        sentences.append(f"its recall of {chosen.recall:.0%} is not below the best")
    if not good:
        sentences.append(f"its recall of {known[chosen.spec]:.0%} is below the {known[best]:.0%} of {best}")
    return sentences


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
