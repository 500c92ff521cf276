"""Learn then Test: of a grid of thresholds those whose risk is limited, and the smallest of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Shaped

from regard.core.errors import ConfigError, DataError, InputError, ShapeError
from regard.core.types_of import typed
from regard_lab.calibration.p_values import TESTS, TestName, items_needed, level_of

_WORDS = {
    "hoeffding_bentkus": "Hoeffding-Bentkus p-values",
    "binomial": "exact binomial p-values",
}


@typed
def fixed_sequence(p_values: Sequence[float], level: float) -> tuple[int, ...]:
    """Indices of the hypotheses that are rejected: in order while p <= level, none after the first that is not.

    The order must be fixed before the data are seen; then no true one is rejected with probability 1 - level or more.

    Example:
        >>> fixed_sequence([0.01, 0.04, 0.2, 0.001], 0.05)
        (0, 1)

    Source: Angelopoulos et al. 2021, fixed sequence testing; Schuster et al. 2022, section 4.
    """
    stop = next((at for at, p in enumerate(p_values) if not p <= level), len(p_values))
    return tuple(range(stop))


@typed
def bonferroni(p_values: Sequence[float], level: float) -> tuple[int, ...]:
    """Indices of the hypotheses that are rejected: p <= level / m, for m of them, in any order.

    Example:
        >>> bonferroni([0.01, 0.04, 0.2, 0.001], 0.05)
        (0, 3)

    Source: Angelopoulos et al. 2021, Bonferroni correction.
    """
    return tuple(at for at, p in enumerate(p_values) if p <= level / len(p_values))


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """What a calibration found, and what that means.

    `threshold` is the smallest one that is certified; None: not one is, and the full model is to be used. `thresholds`
    are those that were tested, with the mean loss of each in `risks` and its p-value in `p_values`; `certified` are
    those of them that passed.
    """

    threshold: float | None
    risk: float
    confidence: float
    items: int
    test: TestName
    thresholds: tuple[float, ...]
    risks: tuple[float, ...]
    p_values: tuple[float, ...]
    certified: tuple[float, ...]

    @property
    def guarantee(self) -> str:
        """What is promised, in one sentence."""
        return self.promise("the expected loss", items="items", alike="items drawn like these")

    def promise(self, loss: str, *, items: str, alike: str) -> str:
        """What is promised, in one sentence and in the words of who calibrates.

        Args:
            loss: what is bounded, "the expected loss".
            items: what was drawn, in the plural.
            alike: what it holds for, "items drawn like these".
        """
        how = f"{_WORDS[self.test]}, tested in a fixed sequence"
        if self.threshold is None:
            return (
                f"None of {len(self.thresholds)} thresholds is certified to keep {loss} at {self.risk:g} or less with "
                f"a confidence of {self.confidence:g} by {self.items} {items} ({how}), so the full model is to be used."
            )
        return (
            f"With a probability of at least {self.confidence:g} over the draw of the {self.items} calibration "
            f"{items}, {loss} at threshold {self.threshold:g} is at most {self.risk:g} for {alike} ({how})."
        )


@typed
def calibrate(
    losses: Shaped[np.ndarray, "items thresholds"],
    thresholds: Sequence[float],
    *,
    risk: float,
    confidence: float = 0.95,
    test: TestName = "hoeffding_bentkus",
) -> Calibrated:
    """The smallest threshold whose expected loss is at most `risk`, wrong with probability 1 - confidence at most.

    For every threshold lambda_j the hypothesis is R(lambda_j) > delta; a p-value from the mean loss of the items tells
    how likely such a mean would be. P(R(chosen) > delta) <= eps holds for any model, any thresholds and any n where
    the items are independent of one another, of the model's training and of the thresholds, and drawn like those to
    come. A threshold picked because its mean loss is below delta has no such guarantee: near the limit it is
    wrong every second time.

    Args:
        losses: of each item at each threshold, in [0, 1]: whether the model that stops early answers otherwise than the
            full one, or by how much a metric falls, max(0, fall).
        thresholds: lambda_1 > lambda_2 > ..., from the safest on; chosen before the losses are seen.
        risk: delta, in (0, 1).
        confidence: 1 - eps, in (0, 1).
        test: the p-value; `binomial` for losses that are 0 or 1, for which it is the sharpest.

    Raises:
        ConfigError: a risk or confidence out of bounds, an unknown test, thresholds that do not fall.
        ShapeError: losses that are not (items, thresholds).
        InputError: a loss that is not in [0, 1], or for `binomial` not 0 or 1.
        DataError: fewer items than could certify anything, even without any loss; it says how many that takes.

    Example:
        >>> answers_differ = np.random.default_rng(0).random((300, 1)) < np.array([0.0, 0.01, 0.04, 0.2])
        >>> found = calibrate(answers_differ, [0.9, 0.7, 0.5, 0.3], risk=0.1, test="binomial")
        >>> found.threshold
        0.5
        >>> print(found.guarantee)  # doctest: +NORMALIZE_WHITESPACE
        With a probability of at least 0.95 over the draw of the 300 calibration items, the expected loss at threshold
        0.5 is at most 0.1 for items drawn like these (exact binomial p-values, tested in a fixed sequence).

    Source: Angelopoulos et al. 2021, Theorem 1; for early exits Schuster et al. 2022, section 4.
    """
    level = level_of(risk, confidence)
    if test not in TESTS:
        raise ConfigError(f"test must be one of {', '.join(TESTS)}, got {test!r}")
    grid = tuple(float(threshold) for threshold in thresholds)
    if not grid or any(not one > other for one, other in pairwise(grid)) or math.isnan(grid[0]):
        raise ConfigError(f"thresholds must fall from the safest on, one at least, got {list(grid)}")
    if losses.ndim != 2 or losses.shape[1] != len(grid):
        raise ShapeError(f"losses must be (items, thresholds={len(grid)}), got {losses.shape}")
    _check_losses(losses, test)
    items, needed = len(losses), items_needed(risk=risk, confidence=confidence, test=test)
    if items < needed:
        raise DataError(
            f"{items} calibration items certify no threshold at risk={risk:g} and confidence={confidence:g}, "
            f"even if not one has a loss; {_WORDS[test]} need {needed} items or more"
        )
    totals = [math.fsum(column) for column in losses.T.astype(np.float64)]
    p_values = tuple(TESTS[test](total, items, risk) for total in totals)
    rejected = fixed_sequence(p_values, level)
    return Calibrated(
        threshold=grid[rejected[-1]] if rejected else None,
        risk=risk,
        confidence=confidence,
        items=items,
        test=test,
        thresholds=grid,
        risks=tuple(total / items for total in totals),
        p_values=p_values,
        certified=tuple(grid[at] for at in rejected),
    )


def _check_losses(losses: np.ndarray, test: TestName) -> None:
    if not ((losses >= 0) & (losses <= 1)).all():  # also false of NaN
        raise InputError("losses must lie in [0, 1]; scale a metric to that range, or take whether answers differ")
    if test == "binomial" and not ((losses == 0) | (losses == 1)).all():
        raise InputError("test='binomial' is for losses of 0 and 1; use hoeffding_bentkus for others")
