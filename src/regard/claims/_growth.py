"""Costs that are counted, and how they grow."""

from collections.abc import Callable, Sequence

import torch

from regard.benchmark.cost import counted


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
