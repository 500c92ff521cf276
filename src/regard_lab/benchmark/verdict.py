"""What can be told apart: values with intervals, paired differences, ties, and the seeds that would settle them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from regard.core.errors import NumericsError, listed
from regard_lab.benchmark import student
from regard_lab.benchmark.student import LEVEL, POWER

RESAMPLES = 2000
MOST_SEEDS = 1000
"""more are not counted: a difference that needs them is none that a choice should rest on"""


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

    @property
    def value(self) -> float:
        """The ratio of sums over everything."""
        return float(self.top.sum() / self.bottom.sum())

    @property
    def of_seeds(self) -> Float[np.ndarray, "seeds"]:
        """The ratio of sums of every seed."""
        return self.top.sum(1) / self.bottom.sum(1)


@dataclass(frozen=True)
class Difference:
    """How much one is worse than another, seed by seed and document by document.

    Attributes:
        middle: the mean over seeds; below 0: it is better.
        seeds: of every seed.
        over_seeds: 95 % interval by the paired t-test over seeds; None: there is one.
        over_units: 95 % interval by the paired bootstrap over documents; None: they were not coded one by one.
    """

    middle: float
    seeds: tuple[float, ...]
    over_seeds: tuple[float, float] | None
    over_units: tuple[float, float] | None

    @property
    def told(self) -> bool:
        """Whether both tests say that it is worse. One seed says nothing of the next: then the documents alone do."""
        found = [one for one in (self.over_seeds, self.over_units) if one is not None]
        return bool(found) and all(low > 0 for low, _ in found)

    @property
    def better(self) -> bool:
        """Whether both tests say that it is better."""
        found = [one for one in (self.over_seeds, self.over_units) if one is not None]
        return bool(found) and all(high < 0 for _, high in found)

    @property
    def tests(self) -> tuple[str, ...]:
        """The tests that told the two apart, by name."""
        named = {"seeds": self.over_seeds, "units": self.over_units}
        return tuple(name for name, one in named.items() if one is not None and (one[0] > 0 or one[1] < 0))

    @property
    def needed(self) -> int | None:
        """Seeds that would settle it; None: no number of them up to `MOST_SEEDS`, or one seed says nothing of that."""
        if len(self.seeds) < 2:
            return None
        return seeds_needed(self.middle, float(np.std(self.seeds, ddof=1)))


def estimates(samples: Mapping[str, Sample]) -> dict[str, Estimate]:
    """The value of every specification with its bootstrap interval over seeds and units (documents)."""
    draws = _draws(samples)
    return {name: Estimate(sample.value, *_interval(draws[name])) for name, sample in samples.items()}


def difference(worse: Sample, best: Sample, *, larger_is_better: bool) -> Difference:
    """How much `worse` is worse than `best`, by two paired tests.

    Over seeds: both saw the same data in the same order, so the t-test is of the differences d_s of n seeds, with n - 1
    degrees of freedom: mean(d) +- t_(0.975, n - 1) std(d) / sqrt(n). Over units: the same documents are drawn for both.
    What was measured once, without a seed, is compared with every seed of the other.

    Source: paired t-test: Student 1908; paired bootstrap over documents: Efron & Tibshirani 1993, chapter 8.
    """
    sign = 1 if larger_is_better else -1
    gaps = sign * (best.of_seeds - worse.of_seeds)
    middle, seeds = float(gaps.mean()), len(gaps)
    over_seeds = None
    if seeds > 1:
        half = student.quantile((1 + LEVEL) / 2, seeds - 1) * float(gaps.std(ddof=1)) / math.sqrt(seeds)
        over_seeds = (middle - half, middle + half)
    over_units = None
    if best.top.shape[1] == worse.top.shape[1] > 1:
        units = best.top.shape[1]
        counts = np.random.default_rng(0).multinomial(units, np.full(units, 1 / units), RESAMPLES)
        drawn = [(counts @ one.top.sum(0)) / (counts @ one.bottom.sum(0)) for one in (best, worse)]
        over_units = _interval(sign * (drawn[0] - drawn[1]))
    return Difference(middle, tuple(float(gap) for gap in gaps), over_seeds, over_units)


def ties(samples: Mapping[str, Sample], *, larger_is_better: bool) -> tuple[str, list[str]]:
    """The best specification, and all that cannot be told from it (itself included): see `difference`."""
    best, worse = differences(samples, larger_is_better=larger_is_better)
    return best, [name for name in samples if name == best or not worse[name].told]


def differences(samples: Mapping[str, Sample], *, larger_is_better: bool) -> tuple[str, dict[str, Difference]]:
    """The best specification, and how much every other is worse.

    Raises:
        NumericsError: a value that is not finite, which is neither better nor worse than another.
    """
    lost = [f"{name}: {sample.value}" for name, sample in samples.items() if not np.isfinite(sample.of_seeds).all()]
    if lost:
        raise NumericsError(f"not every result is a finite number, so nothing can be told apart:{listed(lost)}")
    sign = 1 if larger_is_better else -1
    best = max(samples, key=lambda name: sign * samples[name].value)
    found = {
        name: difference(sample, samples[best], larger_is_better=larger_is_better)
        for name, sample in samples.items()
        if name != best
    }
    return best, found


def seeds_needed(effect: float, spread: float) -> int | None:
    """Seeds after which a paired difference of this size is told from none four times in five.

    The smallest n with n >= ((t_(0.975, n - 1) + t_(0.8, n - 1)) s / |d|)^2: the two-sided paired t-test at 95 % with a
    power of 80 %. The spread of a few seeds is itself uncertain, and so is n.

    Args:
        effect: d, the mean of the paired differences.
        spread: s, their standard deviation.

    Returns:
        None: more than `MOST_SEEDS`, or no effect.

    Example:
        >>> seeds_needed(1.0, 1.0)
        10

    Source: Zar 1999, Biostatistical Analysis, section 7.7; Guenther 1981.
    """

    def enough(n: int) -> bool:
        factor = sum(student.quantile(p, n - 1) for p in ((1 + LEVEL) / 2, POWER))
        return n * effect**2 >= (factor * spread) ** 2

    if effect == 0 or not enough(MOST_SEEDS):
        return None
    low, high = 1, MOST_SEEDS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _draws(samples: Mapping[str, Sample]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    seeds, units = next(iter(samples.values())).top.shape
    picked_units = draw.integers(0, units, (RESAMPLES, units))
    values = {}
    for name, sample in samples.items():
        picked = draw.integers(0, seeds, (RESAMPLES, seeds))
        chosen = [np.ix_(a, b) for a, b in zip(picked, picked_units, strict=True)]
        values[name] = np.array([sample.top[at].sum() / sample.bottom[at].sum() for at in chosen])
    return values


def _interval(draws: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
