"""What stands in the tests of claims on memories in the place of long trainings."""

from collections.abc import Callable

OVER = [2.0] * 40
"""nats of a training that is over"""
RUNNING = [2.0] * 36 + [1.8] * 4
"""of one that is not"""


def by_length(slope: float, nats: list[float] = OVER) -> dict[str, Callable[..., object]]:
    """Bits of letters that change with the length of the memory."""
    return {"letters": lambda self, length, seed: (3.0 + slope * length + 0.001 * seed, nats)}
