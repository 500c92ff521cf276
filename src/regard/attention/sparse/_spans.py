"""How far spans reach."""

import math

STEP = 64
"""spans are computed up to the next multiple: the side of a tile"""


def reach_of(longest: float, ramp: int, max_span: int) -> int:
    """The largest distance at which a span z = `longest` has any weight, in steps, up to `max_span`."""
    seen = math.ceil(longest + ramp) - 1
    return min(-(-seen // STEP) * STEP, max_span)
