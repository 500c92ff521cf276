"""Costs as declared, counted without a clock."""

import math
from functools import cache, partial

import torch

from regard.core.attention import Attention
from regard.core.info import Info
from regard.testing.compare import require
from regard.testing.counting import Count, count
from regard.testing.inputs import Inputs, Subject, call, draw, here, run
from regard.testing.registry import check

SHORT_LENGTH, LONGEST_LENGTH = 512, 16384
"""the lengths between which an exponent is measured; an engine's buffers of 1 MB are full from the first on"""

EXPONENT_SLACK = 0.2
"""how far a measured exponent may exceed the declared one: constant parts, tiles, logarithms"""

LEAST_SHARE = 0.01
"""of what a mechanism does at the longest length, in the term that its exponent claims"""

FEW_KEYS = 4
"""under a mask"""


def _forward(subject: Subject, causal: bool, length: int, heads: int = 1, masked: bool = False) -> Count:
    """The forward pass of a mechanism built for this length."""
    mechanism, x, keep = _call(subject, causal, length, heads, masked)
    return count(lambda: run(mechanism, x, key_mask=keep))


def _training(subject: Subject, causal: bool, length: int, heads: int = 1, masked: bool = False) -> Count:
    """Forward and backward, in training."""
    mechanism, x, keep = _call(subject, causal, length, heads, masked)
    leaves, learner = x.leaves(), mechanism.train()
    return count(lambda: _step(learner, leaves, keep))


def _call(
    subject: Subject, causal: bool, length: int, heads: int, masked: bool
) -> tuple[Attention, Inputs, torch.Tensor | None]:
    """A mechanism built for this length, its inputs, and the mask of its keys."""
    mechanism = subject.build(causal, count=heads, max_length=length)
    x = draw(mechanism.heads, subject.info, length, length, 1, "cost")
    return mechanism, x, torch.arange(length, device=here())[None] < FEW_KEYS if masked else None


def _costs(subject: Subject, causal: bool, length: int) -> tuple[Count, Count]:
    """Forward alone, and forward with backward in training."""
    return _forward(subject, causal, length), _training(subject, causal, length)


def _step(mechanism: Attention, x: Inputs, keep: torch.Tensor | None) -> None:
    answer = call(mechanism, x, key_mask=keep)
    sum(answer.losses.values(), answer.values.sum()).backward()


def _beyond(info: Info, causal: bool, length: int, small: tuple[Count, Count], large: tuple[Count, Count]) -> str:
    """What grows faster than declared from a length to twice as many; empty: nothing."""
    for what, one, two in zip(("forward", "forward + backward"), small, large, strict=True):
        time, memory = math.log2(two.work / one.work), math.log2(two.peak / one.peak)
        where = f"between {length} and {2 * length} positions, {causal=}"
        if time >= info.time + EXPONENT_SLACK:
            return f"{what}: operations grow as length^{time:.2f} {where}: {info.time=}"
        if memory >= info.memory + EXPONENT_SLACK:
            return f"{what}: memory grows as length^{memory:.2f} {where}: {info.memory=}"
        if info.memory < 2 and two.largest >= (2 * length) ** 2 // 2:
            return f"{what}: a tensor of {two.largest} numbers at {2 * length} positions"
    return ""


@check()
def cost(subject: Subject) -> None:
    """Operations and memory grow with the length as `info.time` and `info.memory` say, forward and backward.

    Where they grow faster, the lengths are doubled until they are many times the largest option: below a window
    everything is quadratic.
    """
    last = min(max(64 * subject.size, 8 * SHORT_LENGTH), LONGEST_LENGTH)
    for causal in subject.modes:
        length, small = SHORT_LENGTH, _costs(subject, causal, SHORT_LENGTH)
        while True:
            large = _costs(subject, causal, 2 * length)
            found = _beyond(subject.info, causal, length, small, large)
            square = max(each.largest for each in large) >= 2 * length**2 and length > 8 * subject.size
            if not found or square or 4 * length > last:
                break
            length, small = 2 * length, large
        require(not found, found)


@check()
def cost_is_reached(subject: Subject) -> None:
    """Operations and memory do grow as fast as `info.time` and `info.memory` say, of some call: they are no excuse.

    With c0 + c1 n + c2 n^2 operations for n positions, those for 4n less three times those for 2n plus twice those for
    n are 6 c2 n^2, however small c2 is beside c1. Lengths are doubled until this shows; heads may differ, and what
    chooses by the number of keys is asked with few under a mask, too. Of an exponent up to 1 nothing is claimed, nor of
    definitions, which are declared quadratic all alike.
    """
    fast = subject.options.get("impl") != "reference"
    missing = {name for name in ("time", "memory") if fast and getattr(subject.info, name) > 1}
    masks = (False, True) if subject.info.supports.key_mask else (False,)
    for masked, heads in [(False, 1), *((masked, 2) for masked in masks)]:
        for causal in subject.modes if missing else ():
            # The backward pass costs most, so it is counted where the forward pass does not show what is claimed.
            phases = [cache(partial(one, subject, causal, heads=heads, masked=masked)) for one in (_forward, _training)]
            length = 4 * SHORT_LENGTH
            while missing and length <= LONGEST_LENGTH:
                for counted in phases:
                    if missing:
                        counts = [counted(n) for n in (length // 4, length // 2, length)]
                        missing = {name for name in missing if not _reached(subject.info, name, *counts)}
                length *= 2
    of = ", ".join(f"info.{name}={getattr(subject.info, name):g}" for name in sorted(missing))
    require(not missing, f"{of}: no call of up to {LONGEST_LENGTH} positions grows as fast")


def _reached(info: Info, name: str, one: Count, two: Count, four: Count) -> bool:
    """Whether what doubles twice has a term with the declared exponent."""
    declared: float = getattr(info, name)
    a, b, c = (each.work if name == "time" else each.peak for each in (one, two, four))
    return c - 3 * b + 2 * a >= LEAST_SHARE * c if declared <= 2 else math.log2(c / b) >= declared - 2 * EXPONENT_SLACK
