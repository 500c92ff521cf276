"""p-values against literal sums in rational numbers, and against what makes a number a p-value."""

import math
from fractions import Fraction

import pytest

from regard.core.errors import ConfigError, InputError
from regard_lab.calibration import binomial, hoeffding_bentkus, items_needed
from regard_lab.calibration.p_values import TESTS

SIZES = ((1, 0.5), (7, 0.1), (40, 0.03), (40, 0.9), (150, 0.1))


def term(k: int, n: int, p: float) -> Fraction:
    """P(B = k) without rounding."""
    return math.comb(n, k) * Fraction(p) ** k * (1 - Fraction(p)) ** (n - k)


@pytest.mark.parametrize(("n", "p"), SIZES)
def test_the_binomial_sum_is_exact(n, p):
    total = Fraction(0)
    for k in range(n + 1):
        total += term(k, n, p)
        assert abs(Fraction(binomial(float(k), n, p)) / total - 1) < 1e-15


@pytest.mark.parametrize(("k", "n"), [(4900, 20_000), (5000, 20_000), (5200, 20_000), (100, 1_000_000)])
def test_both_tails_of_many_items_make_one(k, n):
    """P(B <= k) + P(n - B <= n - k - 1) = 1, where one of them is summed from its other end."""
    low, high = binomial(float(k), n, 0.25), binomial(float(n - k - 1), n, 0.75)
    assert abs(low + high - 1) < 1e-15
    assert low == 0 if n == 1_000_000 else 1e-5 < low < 1


def test_formulas_by_hand():
    entropy = 0.05 * math.log(0.05 / 0.1) + 0.95 * math.log(0.95 / 0.9)
    bentkus = math.e * float(sum(term(k, 100, 0.1) for k in range(6)))
    assert hoeffding_bentkus(5.0, 100, 0.1) == pytest.approx(min(math.exp(-100 * entropy), bentkus), rel=1e-12)
    far = math.e * float(sum(term(k, 1000, 0.5) for k in range(401)))  # of the two Bentkus's is the smaller here
    assert hoeffding_bentkus(399.5, 1000, 0.5) == pytest.approx(far, rel=1e-12)
    near = math.exp(-30 * math.log(1 / 0.9))  # and Hoeffding's here
    assert hoeffding_bentkus(0.0, 30, 0.1) == pytest.approx(near, rel=1e-12)


@pytest.mark.parametrize("name", TESTS)
@pytest.mark.parametrize(("n", "p"), SIZES)
def test_no_level_is_exceeded_where_the_risk_is_the_limit(name, n, p):
    """P(p-value <= level) <= level, for losses of 0 and 1 with exactly the risk that is tested, by enumeration."""
    found = [(TESTS[name](float(k), n, p), term(k, n, p)) for k in range(n + 1)]
    for level, _ in found:
        if level < 1:
            assert sum(chance for value, chance in found if value <= level) <= Fraction(level) * (
                1 + Fraction(1, 10**12)
            )


@pytest.mark.parametrize("name", TESTS)
def test_more_loss_is_never_more_evidence(name):
    values = [TESTS[name](float(k), 80, 0.2) for k in range(81)]
    assert values == sorted(values)
    assert values[0] < 0.05
    assert values[-1] == 1


def test_sharper_tests_are_sharper():
    for k in range(10):
        assert binomial(float(k), 100, 0.1) < hoeffding_bentkus(float(k), 100, 0.1)


def test_items_needed():
    assert items_needed(risk=0.05, confidence=0.95) == items_needed(risk=0.05, confidence=0.95, test="binomial") == 59
    assert items_needed(risk=0.5, confidence=0.75, test="binomial") == 2  # 0.5^2 is just enough
    assert items_needed(risk=0.8, confidence=0.8) == 1  # 0.2 too, which 1 - 0.8 is not in binary
    assert items_needed(risk=0.99, confidence=0.01) == 1
    for name, p_value in TESTS.items():
        count = items_needed(risk=0.07, confidence=0.9, test=name)
        assert p_value(0.0, count, 0.07) <= 0.1 < p_value(0.0, count - 1, 0.07)


def test_what_makes_no_sense_is_named():
    for bad in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(ConfigError, match="risk must lie between 0 and 1"):
            items_needed(risk=bad, confidence=0.9)
        with pytest.raises(ConfigError, match="confidence must lie between 0 and 1"):
            items_needed(risk=0.1, confidence=bad)
        with pytest.raises(ConfigError, match="limit must lie between 0 and 1"):
            binomial(0.0, 5, bad)
    with pytest.raises(InputError, match="needs 1 item or more"):
        binomial(0.0, 0, 0.1)
    for bad in (-1.0, 5.5, float("nan")):
        with pytest.raises(InputError, match="have a sum from 0 to 5"):
            hoeffding_bentkus(bad, 5, 0.1)
    with pytest.raises(InputError, match="use hoeffding_bentkus"):
        binomial(1.5, 5, 0.1)
