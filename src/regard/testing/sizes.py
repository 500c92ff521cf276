"""How long a sequence must be before every option of a mechanism that counts slots has acted."""

import re
from collections.abc import Mapping

LONGEST = 8192
"""no check is longer than this for the sake of a size"""


def largest_size(options: Mapping[str, object]) -> int:
    """The largest integer among the options, in tuples and in rules too: windows, blocks and strides are such.

    Example:
        >>> largest_size({"rule": "window(64) | strided(128)", "blocks": (2, 16), "scale": 0.5, "causal": True})
        128
    """
    return max((_largest(value) for value in options.values()), default=0)


def _largest(value: object) -> int:
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return max(map(int, re.findall(r"\d+", value)), default=0)
    return max(map(_largest, value), default=0) if isinstance(value, tuple | list) else 0


def growing(first: int, size: int) -> list[int]:
    """Lengths from `first` on, each about twice the one before and odd, beyond what several blocks of the size hold."""
    lengths = [first]
    while lengths[-1] <= min(max(8 * size, 64), LONGEST // 2):
        lengths.append(2 * lengths[-1] + 1)
    return lengths
