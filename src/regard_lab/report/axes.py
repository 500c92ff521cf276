"""Axes that can be read at any width: ticks where something was measured, and labels that leave room for each other."""

import math
from collections.abc import Sequence
from typing import Any

NARROW = 270
"""pixels that an axis has on a screen of 400"""
LETTER, GAP = 7, 10
"""pixels of a letter of a label, and between two labels"""


def at_lengths(lengths: Sequence[int]) -> dict[str, Any]:
    """A logarithmic axis with a tick at every length, and a label wherever there is room for it on a narrow screen.

    The longest length always has its label, the others as they fit, from the longest down.
    """
    ticks = sorted(set(lengths))
    if not ticks:
        return {"type": "log"}
    whole = math.log(ticks[-1] / ticks[0]) or 1.0
    labels, free = dict.fromkeys(ticks, ""), math.inf
    for tick in reversed(ticks):
        label = f"{tick:,}"
        middle, half = NARROW * math.log(tick / ticks[0]) / whole, (LETTER * len(label) + GAP) / 2
        if middle + half <= free:
            labels[tick], free = label, middle - half
    return {"type": "log", "tickmode": "array", "tickvals": ticks, "ticktext": list(labels.values()), "tickangle": 0}


def seconds(values: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis of seconds, labelled as 2 ms or 50 µs."""
    ticks = _decimal(values)
    return _logarithmic(ticks, [_named(tick, ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))) for tick in ticks])


def nbytes(values: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis of bytes, in powers of 2, labelled as 64 KiB."""
    known = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log2(min(known))), math.ceil(math.log2(max(known)))
    ticks = [2.0**power for power in range(low, high + 1, max(1, (high - low) // 5))]
    return _logarithmic(ticks, [_named(tick, ((2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))) for tick in ticks])


def _logarithmic(ticks: list[float], labels: list[str]) -> dict[str, Any]:
    return {"type": "log", "tickmode": "array", "tickvals": ticks, "ticktext": labels}


def _decimal(values: Sequence[float]) -> list[float]:
    """Powers of ten around the values; 1, 2 and 5 of each where they span less than two."""
    known = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    steps = (1, 2, 5) if high - low <= 2 else (1,)
    return [step * 10.0**power for power in range(low, high + 1, max(1, (high - low) // 6)) for step in steps]


def _named(value: float, units: Sequence[tuple[float, str]]) -> str:
    """The value in the largest unit of which it has one."""
    size, name = next((unit for unit in units if value >= unit[0] * 0.999), units[-1])
    return f"{value / size:,.4g} {name}"
