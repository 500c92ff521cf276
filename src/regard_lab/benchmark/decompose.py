"""Error, bias and variance of a random estimate, from redraws of it."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard_lab.benchmark import student
from regard_lab.benchmark.student import LEVEL, POWER

LEAST_REDRAWS = 3
"""standard errors by leaving one redraw out need two others"""


@dataclass(frozen=True)
class Decomposition:
    """Squares relative to |exact|^2, and their standard errors; error = bias + variance.

    Attributes:
        error: the mean squared error of a redraw.
        bias: the squared error of the mean over infinitely many redraws; its unbiased estimate may come out below 0.
        variance: the mean squared distance of a redraw from that mean.
        smallest_bias: a squared bias of this size is told from none about four times in five.
        biased: whether the bias is told from none at 95 %.
    """

    error: float
    error_se: float
    bias: float
    bias_se: float
    variance: float
    variance_se: float
    smallest_bias: float
    biased: bool


def decompose(errors: Float[Tensor, "redraws numbers"], exact: float) -> Decomposition:
    """Split the error of an estimate into bias and variance.

    With d_r = estimate_r - exact, independent over r, and R redraws:

        error    = mean_r |d_r|^2
        bias     = mean_{r != s} d_r . d_s = |mean_r d_r|^2 - S^2 / R,   S^2 = sum_r |d_r - mean d|^2 / (R - 1)
        variance = error - bias = S^2

    Two redraws share nothing but the bias, so the products estimate its square without bias; it is |mean error|^2 less
    what R redraws leave of the variance in their mean. All three add up exactly, and none is biased.

    Standard errors: of the error, from the spread of |d_r|^2; of the others, by leaving out one redraw at a time
    (jackknife). Were there no bias, products of different pairs would be uncorrelated, with mean 0: their standard
    deviation over sqrt(R (R - 1) / 2) is the standard error that a bias has to exceed. (A bias adds to it, so what is
    called biased is.) A single redraw is for an estimate that is not random: its error is its bias.

    Args:
        errors: d_r.
        exact: |exact|^2, more than 0.

    Raises:
        AssertionError: two redraws.

    Example:
        >>> decompose(torch.tensor([[3.0, 4.0]]), 100.0).bias
        0.25
    """
    redraws = len(errors)
    assert redraws == 1 or redraws >= LEAST_REDRAWS
    products = (errors @ errors.mT).double() / exact
    squares = products.diagonal()
    error = squares.mean().item()
    if redraws == 1:
        return Decomposition(error, 0.0, error, 0.0, 0.0, 0.0, 0.0, error > 0)
    of_pairs = products.sum(1) - squares
    pairs = redraws * (redraws - 1)
    bias = (of_pairs.sum() / pairs).item()
    bias_without = (of_pairs.sum() - 2 * of_pairs) / ((redraws - 1) * (redraws - 2))
    error_without = (squares.sum() - squares) / (redraws - 1)
    first, second = torch.triu_indices(redraws, redraws, 1)
    null = products[first, second].std().item() / math.sqrt(pairs / 2)
    tail, power = (student.quantile(p, redraws - 1) for p in ((1 + LEVEL) / 2, POWER))
    return Decomposition(
        error=error,
        error_se=squares.std().item() / math.sqrt(redraws),
        bias=bias,
        bias_se=_jackknife(bias_without),
        variance=error - bias,
        variance_se=_jackknife(error_without - bias_without),
        smallest_bias=(tail + power) * null,
        biased=bias > tail * null,
    )


def _jackknife(without: Tensor) -> float:
    """The standard error of a statistic from its values without each of the redraws (Efron and Stein 1981)."""
    return math.sqrt((len(without) - 1) * without.var(correction=0).item())
