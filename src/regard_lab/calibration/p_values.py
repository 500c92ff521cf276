"""p-values of a mean loss: how likely items so cheap were, had the expected loss been above a limit."""

import math
from collections.abc import Callable, Mapping
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from types import MappingProxyType
from typing import Literal

from regard.core.errors import ConfigError, InputError
from regard.core.types_of import typed

TestName = Literal["hoeffding_bentkus", "binomial"]
"""of a p-value"""

_DIGITS = 40
"""of the sums, so that nothing is lost of the 16 that are returned, whatever the number of items"""
_MOST_ITEMS = 1 << 50
"""of which a float tells one more or less"""


@typed
def hoeffding_bentkus(total: float, count: int, limit: float) -> float:
    """p = min(1, exp(-n h(min(r, delta), delta)), e P(B <= ceil(n r))), B binomial of n trials with chance delta.

    h(a, b) = a log(a / b) + (1 - a) log((1 - a) / (1 - b)). The first is Hoeffding's bound before it is simplified to
    exp(-2 n (delta - r)^2), the second is of Bentkus; the sharper of two valid bounds that follow from the same mean is
    valid. It holds for any losses in [0, 1].

    Args:
        total: n r, the sum of the losses, each in [0, 1].
        count: n, items.
        limit: delta, in (0, 1).

    Raises:
        InputError: no items, or a sum that they cannot have.
        ConfigError: a limit out of bounds.

    Example:
        >>> hoeffding_bentkus(3.0, 100, 0.1) < 0.05
        True

    Source: Bates et al. 2021 and Angelopoulos et al. 2021, after Hoeffding 1963, Eq. 2.1, and Bentkus 2004.
    """
    _check(total, count, limit)
    mean = min(total / count, limit)
    part = mean * math.log(mean / limit) if mean else 0.0
    rest = (1 - mean) * (math.log1p(-mean) - math.log1p(-limit))
    # ceil of a sum that rounding left just above a whole number gives a larger p, which errs on the safe side
    return min(1.0, math.exp(-count * (part + rest)), math.e * _at_most(math.ceil(total), count, limit))


@typed
def binomial(total: float, count: int, limit: float) -> float:
    """p = P(B <= n r), B binomial of n trials with chance delta: exact for losses that are 0 or 1.

    Summed downwards in 40 digits until nothing changes, so that the float returned is right to its last digits for any
    n; it takes time in proportion to n where the losses lie far above the limit.

    Args:
        total, count, limit: as `hoeffding_bentkus`; the total is a whole number.

    Raises:
        InputError, ConfigError: as `hoeffding_bentkus`; a total that losses of 0 and 1 cannot have.

    Example:
        >>> binomial(1.0, 2, 0.5), binomial(0.0, 22, 0.1) < 0.1 < binomial(0.0, 21, 0.1)
        (0.75, True)

    Source: Clopper & Pearson 1934; as the p-value of a risk: Angelopoulos et al. 2021.
    """
    _check(total, count, limit)
    if total != int(total):
        raise InputError(f"binomial is for losses of 0 and 1, got a sum of {total!r}; use hoeffding_bentkus")
    return _at_most(int(total), count, limit)


def _at_most(wins: int, count: int, chance: float) -> float:
    """P(B <= wins), exact up to the rounding of the result."""
    if wins >= count:
        return 1.0
    with localcontext(prec=_DIGITS, Emin=MIN_EMIN, Emax=MAX_EMAX):
        p = Decimal(chance)
        q = 1 - p
        term = math.comb(count, wins) * p**wins * q ** (count - wins)
        total = term
        for k in range(wins, 0, -1):
            term = term * k * q / ((count - k + 1) * p)
            total += term
            if term < total.scaleb(-_DIGITS):  # they rise to the mode, below which they only shrink
                break
        return float(min(total, Decimal(1)))


TESTS: Mapping[TestName, Callable[[float, int, float], float]] = MappingProxyType(
    {"hoeffding_bentkus": hoeffding_bentkus, "binomial": binomial}
)
"""p-values by name"""


@typed
def items_needed(*, risk: float, confidence: float, test: TestName = "hoeffding_bentkus") -> int:
    """The smallest n whose p-value without any loss is 1 - confidence or less: with fewer items nothing is certified.

    n >= log(1 / eps) / -log(1 - delta), where delta = risk and eps = 1 - confidence.

    Args:
        risk: the expected loss that is allowed, in (0, 1).
        confidence: in (0, 1).
        test: which p-value.

    Raises:
        ConfigError: a risk or confidence out of bounds, or so small an error that it takes more items than a float
            counts; an unknown test.

    Example:
        >>> [items_needed(risk=0.1, confidence=0.9, test=test) for test in TESTS]
        [22, 22]
    """
    level = level_of(risk, confidence)
    if test not in TESTS:
        raise ConfigError(f"test must be one of {', '.join(TESTS)}, got {test!r}")
    rate = -math.log1p(-risk)
    if rate == 0 or -math.log(level) / rate > _MOST_ITEMS:
        raise ConfigError(
            f"risk={risk!r} at confidence={confidence!r} takes more than {_MOST_ITEMS:,} items: no data certify it; "
            "allow a larger risk"
        )
    count, p_value = max(1, math.ceil(-math.log(level) / rate)), TESTS[test]
    while p_value(0.0, count, risk) > level:  # the last digit of a logarithm is not to decide
        count += 1
    while count > 1 and p_value(0.0, count - 1, risk) <= level:
        count -= 1
    return count


def level_of(risk: float, confidence: float) -> float:
    """1 - confidence, without the digits of rounding that would ask for one item more.

    Raises:
        ConfigError: a risk or confidence that is not between 0 and 1.
    """
    for name, value in (("risk", risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ConfigError(f"{name} must lie between 0 and 1, both excluded, got {value!r}")
    return float(1 - Decimal(repr(float(confidence))))


def _check(total: float, count: int, limit: float) -> None:
    if not 0 < limit < 1:
        raise ConfigError(f"limit must lie between 0 and 1, both excluded, got {limit!r}")
    if count < 1:
        raise InputError(f"a p-value needs 1 item or more, got {count}")
    if not 0 <= total <= count:
        raise InputError(f"losses in [0, 1] of {count} items have a sum from 0 to {count}, got {total!r}")
