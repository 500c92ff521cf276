"""A threshold for every block, searched on tokens of which confidences and losses at all exits are known."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from regard.core.errors import ConfigError, InputError, ShapeError
from regard.core.types_of import typed


@dataclass(frozen=True)
class Searched:
    """thresholds: of every block but the last; None: no token leaves there. loss, blocks: the means over the tokens."""

    thresholds: tuple[float | None, ...]
    loss: float
    blocks: float


@typed
def grid_search(
    confidences: Shaped[np.ndarray, "tokens exits"],
    losses: Shaped[np.ndarray, "tokens blocks"],
    grid: Sequence[float],
    *,
    price: float,
) -> Searched:
    """Thresholds tau_n of a grid, or None, with a small mean of (loss at the exit taken) + price (blocks taken).

    A token takes exit n = min {n : c^n >= tau_n}, the last one if there is none; at None no token leaves. Begins at the
    best threshold that all blocks share, and then takes the best one for each block in turn, from the deepest up, until
    no change of one alone is better, of equal ones the highest: no worse than any shared threshold, and the best of all
    only where the search does not get stuck. What is searched on the tokens of a text promises nothing for others (see
    `calibrate`); and confidences that were read with every block say nothing of the keys of copied states, so that the
    model is to be measured with what was found.

    Cost: O(tokens exits grid) operations for each block and round.

    Args:
        confidences: c^n of each token behind every block but the last; NaN: it cannot leave there.
        losses: of each token at each exit, the last one included; smaller is better.
        grid: thresholds that may be taken.
        price: of a block, in units of the loss.

    Raises:
        ShapeError: confidences of other tokens or exits than the losses.
        ConfigError: no grid, one with NaN, or a price that is negative or not finite.
        InputError: no tokens, or a loss that is not finite.

    Example:
        Token 0 is right behind the first block, token 1 behind the second:

        >>> sure, wrong = np.array([[0.9, 0.9], [0.6, 0.9]]), np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
        >>> grid_search(sure, wrong, [0.5, 0.7, 0.95], price=0.1)
        Searched(thresholds=(0.7, 0.7), loss=0.0, blocks=1.5)

    Source: Elbayad et al. 2020, Depth-Adaptive Transformer, sections 3.2 and 4: a threshold for each block, tuned on
    held-out text.
    """
    if losses.ndim != 2 or losses.shape[1] < 1 or confidences.shape != (len(losses), losses.shape[1] - 1):
        raise ShapeError(
            f"confidences must be (tokens, blocks - 1) of losses (tokens, blocks), got {confidences.shape} and "
            f"{losses.shape}"
        )
    levels = sorted({float(one) for one in grid}, reverse=True)
    if not levels or any(math.isnan(one) for one in levels):
        raise ConfigError(f"grid must have one threshold or more, and none that is NaN, got {list(grid)}")
    if not 0 <= price < math.inf:
        raise ConfigError(f"price must be finite and 0 or more, got {price}")
    if not len(losses) or not np.isfinite(losses).all():
        raise InputError("losses must be finite numbers of one token or more")
    levels = [math.inf, *levels]
    cost = losses.astype(np.float64) + price * np.arange(1, losses.shape[1] + 1)
    exits = confidences.shape[1]

    def spent(thresholds: Sequence[float]) -> float:
        return float(_picked(cost, taken(confidences, thresholds)).mean())

    best = min(([level] * exits for level in levels), key=spent)
    least, better = spent(best), True
    while better:
        better = False
        for at in reversed(range(exits)):
            for level in levels:
                tried = [*best[:at], level, *best[at + 1 :]]
                if (found := spent(tried)) < least:
                    best, least, better = tried, found, True
    used = taken(confidences, best)
    chosen = tuple(None if level == math.inf else level for level in best)
    return Searched(chosen, float(_picked(losses.astype(np.float64), used).mean()), float(used.mean()))


def taken(confidences: Shaped[np.ndarray, "tokens exits"], thresholds: Sequence[float]) -> Int64[np.ndarray, " tokens"]:
    """How many blocks each token takes, from 1 on.

    Example:
        >>> taken(np.array([[0.2, 0.8], [0.9, 0.1], [0.1, 0.1]]), [0.9, 0.8]).tolist()
        [2, 1, 3]
    """
    leaves = confidences >= np.asarray(thresholds, np.float64)
    none = np.full(len(leaves), confidences.shape[1] + 1)
    return np.where(leaves.any(1), leaves.argmax(1) + 1, none) if confidences.shape[1] else none


def _picked(values: Float64[np.ndarray, "tokens blocks"], used: np.ndarray) -> Float64[np.ndarray, " tokens"]:
    return np.take_along_axis(values, used[:, None] - 1, 1)[:, 0]
