"""Student's distribution: how sure a mean over few seeds is."""

import math

LEVEL = 0.95
"""of intervals"""
POWER = 0.8
"""how often an effect of the smallest size that is stated is found"""


def quantile(probability: float, freedom: int) -> float:
    """The t below which a share of Student's distribution lies, for a share of at least one half.

    Example:
        >>> round(quantile(0.975, 2), 3)
        4.303
    """
    low, high = 0.0, 1e6
    while high - low > 1e-12 * (1 + high):
        middle = (low + high) / 2
        low, high = (middle, high) if share(middle, freedom) < probability else (low, middle)
    return high


def share(t: float, freedom: int) -> float:
    """Student's distribution function at t >= 0, in closed form (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    term, total, square = (math.cos(angle) if freedom % 2 else 1.0), 0.0, math.cos(angle) ** 2
    for at in range(1 + freedom % 2, freedom, 2):
        total += term
        term *= square * at / (at + 1)
    if freedom % 2:
        return 0.5 + (angle + math.sin(angle) * total) / math.pi
    return 0.5 + math.sin(angle) * total / 2
