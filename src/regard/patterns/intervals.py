"""Interval arithmetic on positions: what a rule over two positions says about whole sets of them."""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from regard.core.errors import ConfigError

FAR = 1 << 40
"""Further than any position: the end of a span without end."""

WHOLE = 1 << 62
"""Integers of 64 bits hold these, and the sum of two of them."""


class TooLargeError(ArithmeticError):
    """Positions that a rule has multiplied until integers of 64 bits would not hold them."""


class Possibility:
    """A condition on a set of pairs: whether it `may` hold somewhere, and whether it `must` hold everywhere.

    Both are safe: `may` can be true without cause, `must` can be false without cause; never the reverse.
    """

    __slots__ = ("may", "must")

    def __init__(self, may: Tensor, must: Tensor) -> None:
        self.may, self.must = may, must

    def __and__(self, other: Self) -> "Possibility":
        if not isinstance(other, Possibility):
            return NotImplemented
        return Possibility(self.may & other.may, self.must & other.must)

    def __or__(self, other: Self) -> "Possibility":
        if not isinstance(other, Possibility):
            return NotImplemented
        return Possibility(self.may | other.may, self.must | other.must)

    def __invert__(self) -> "Possibility":
        return Possibility(~self.must, ~self.may)

    def __bool__(self) -> bool:
        raise TypeError("a condition on sets of positions has no single truth value; write & | ~ for and, or, not")


class Span:
    """The positions {lo, lo + step, ..., hi}, or some that contain them; the fields broadcast like tensors.

    A single position has step 0. `hi` is always a whole number of steps from `lo`, so that both ends anchor the steps.
    """

    __slots__ = ("hi", "lo", "reach", "step")

    reach: int
    """at least the magnitude of every position"""

    def __init__(self, lo: Tensor | int, hi: Tensor | int, step: Tensor | int = 1, *, reach: int = 2 * FAR) -> None:
        self.lo = torch.as_tensor(lo)
        self.hi, self.step = (torch.as_tensor(x, device=self.lo.device) for x in (hi, step))
        self.reach = reach

    def within(self, reach: int) -> "Span":
        """The same positions, which are known to reach so far."""
        return Span(self.lo, self.hi, self.step, reach=reach)

    def _of(self, other: "Span | int | Tensor") -> "Span":
        if isinstance(other, Span):
            return other
        if isinstance(other, bool) or not isinstance(other, int):
            raise TypeError(f"positions combine with integers, got {type(other).__name__}")
        place = torch.as_tensor(other, device=self.lo.device)
        return Span(place, place, 0, reach=abs(other))

    def _whole(self, divisor: int) -> Tensor:
        if isinstance(divisor, bool) or not isinstance(divisor, int) or divisor < 1:
            raise TypeError(f"positions are divided by positive integers, got {divisor!r}")
        return torch.as_tensor(divisor, device=self.lo.device)

    def __add__(self, other: "Span | int") -> "Span":
        other = self._of(other)
        reach = _whole(self.reach + other.reach)
        return Span(self.lo + other.lo, self.hi + other.hi, torch.gcd(self.step, other.step), reach=reach)

    __radd__ = __add__

    def __neg__(self) -> "Span":
        return Span(-self.hi, -self.lo, self.step, reach=self.reach)

    def __sub__(self, other: "Span | int") -> "Span":
        return self + -self._of(other)

    def __rsub__(self, other: int) -> "Span":
        return -self + other

    def __mul__(self, factor: int) -> "Span":
        if isinstance(factor, bool) or not isinstance(factor, int) or abs(factor) >= 1 << 20:
            raise TypeError(f"positions are multiplied by integers below 2^20, got {factor!r}")
        reach = _whole(self.reach * abs(factor))
        low, high = (self.lo, self.hi) if factor >= 0 else (self.hi, self.lo)
        return Span(low * factor, high * factor, self.step * abs(factor), reach=reach)

    __rmul__ = __mul__

    def __abs__(self) -> "Span":
        low, high = self.lo.abs(), self.hi.abs()
        crosses = (self.lo < 0) & (self.hi > 0)
        in_step = self.lo % self.step.clamp_min(1) == 0  # 0 is one of the positions, so the steps survive the fold
        return Span(
            torch.where(crosses, 0, torch.minimum(low, high)),
            torch.maximum(low, high),
            torch.where(crosses & ~in_step, 1, self.step),
            reach=self.reach,
        )

    def __floordiv__(self, divisor: int) -> "Span":
        d = self._whole(divisor)
        lo, hi = self.lo // d, self.hi // d
        step = torch.where(self.step % d == 0, self.step // d, 1)
        return Span(lo, hi, torch.where(lo == hi, 0, step), reach=self.reach // divisor + 1)

    def __mod__(self, divisor: int) -> "Span":
        d = self._whole(divisor)
        one_period = self.lo // d == self.hi // d
        fixed = self.step % d == 0
        g = torch.gcd(self.step, d)  # residues that are reached lie g apart
        lo = torch.where(one_period | fixed, self.lo % d, self.lo % g)
        hi = torch.where(fixed, lo, torch.where(one_period, self.hi % d, d - g + self.lo % g))
        return Span(lo, hi, torch.where(lo == hi, 0, torch.where(one_period, self.step, g)), reach=divisor)

    def __le__(self, other: "Span | int") -> Possibility:
        other = self._of(other)
        return Possibility(self.lo <= other.hi, self.hi <= other.lo)

    def __ge__(self, other: "Span | int") -> Possibility:
        return self._of(other) <= self

    def __lt__(self, other: "Span | int") -> Possibility:
        other = self._of(other)
        return Possibility(self.lo < other.hi, self.hi < other.lo)

    def __gt__(self, other: "Span | int") -> Possibility:
        return self._of(other) < self

    def __eq__(self, other: object) -> Possibility:  # type: ignore[override]
        difference = self - self._of(other)  # type: ignore[arg-type]
        lo, hi = difference.lo, difference.hi
        meets = (lo <= 0) & (hi >= 0) & (lo % difference.step.clamp_min(1) == 0)
        return Possibility(meets, (lo == 0) & (hi == 0))

    def __ne__(self, other: object) -> Possibility:  # type: ignore[override]
        return ~(self == other)

    __hash__ = None  # type: ignore[assignment]


def _whole(reach: int) -> int:
    if reach > WHOLE:
        raise TooLargeError
    return reach


def followed(rule: Callable[[Any, Any], Any], text: str, i: Span, j: Span) -> Any:
    """The rule on sets of positions; None: it multiplies positions too far for spans without end.

    Raises:
        ConfigError: it does so for these positions too.
    """
    try:
        return rule(i, j)
    except TooLargeError:
        reach = max((int(end.abs().max()) for end in (i.lo, i.hi, j.lo, j.hi) if end.numel()), default=0)
        if reach >= FAR:
            return None
        try:
            return rule(i.within(reach), j.within(reach))
        except TooLargeError:
            raise ConfigError(
                f"the rule of {text} computes with numbers that 64 bits cannot hold at position {reach}; multiply "
                "positions by less, or take % first"
            ) from None
