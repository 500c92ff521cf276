"""Costs that are counted, and how they grow."""

import math
from collections.abc import Callable, Sequence

import torch

from evidence.claims._base import Curve
from regard_lab.benchmark.cost import counted


def operations(call: Callable[[], object]) -> int:
    """Of matrix products, multiplications and additions, inside custom operators too."""
    return counted(call).operations


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log y over log x by least squares.

    Example:
        >>> round(exponent((1, 2, 4), (3.0, 12.0, 48.0)), 9)
        2.0
    """
    a, b = (torch.tensor(values, dtype=torch.float64).log() for values in (x, y))
    a = a - a.mean()
    return float((a * b).sum() / a.square().sum())


def ratio(curve: Curve, other: Curve) -> float:
    """A curve over another one at equal cost, the geometric mean over the points of the first."""
    logs = [math.log(y / between(other, float(x))) for x, y in zip(*curve, strict=True)]
    return math.exp(sum(logs) / len(logs))


def between(curve: Curve, x: float) -> float:
    """A curve at x: straight lines between the logarithms, and their ends continued.

    Example:
        >>> round(between(([1.0, 100.0], [1.0, 0.1]), 10.0), 4)
        0.3162
    """
    points = sorted((math.log(float(a)), math.log(b)) for a, b in zip(*curve, strict=True))
    at = math.log(x)
    last = next((i for i in range(1, len(points)) if points[i][0] >= at), len(points) - 1)
    (x0, y0), (x1, y1) = points[last - 1], points[last]
    return math.exp(y0 + (y1 - y0) * (at - x0) / (x1 - x0))
