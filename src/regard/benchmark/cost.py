"""Costs that are counted, not timed: floating-point operations, and numbers made, alive and in one tensor."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """The cost of one call.

    operations: multiply-adds counted twice, of matrix products and fused attention. elements: numbers written by all
    operators together. peak: most elements alive at one time, of what was made. largest: elements of the largest tensor
    made.
    """

    operations: int
    elements: int
    peak: int
    largest: int


def counted(call: Callable[[], object]) -> Cost:
    """The cost of a call (forward, or forward and backward), the work inside custom operators included."""
    from regard.testing.counting import count

    counts = count(call)
    return Cost(counts.flops, counts.produced, counts.peak, counts.largest)
