"""The comparison helper fails where it must."""

import pytest
import torch

from regard.testing import assert_close, assert_identical
from regard.testing.compare import largest_error

EXPECTED = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))


def close(actual, expected=EXPECTED, tolerance=1e-6):
    assert_close(actual, expected, tolerance=tolerance, what="values")


def with_value(value, at=(1, 2, 3)):
    x = EXPECTED.clone()
    x[at] = value
    return x


def test_accepts_equal_and_nearly_equal():
    close(EXPECTED.clone(), tolerance=0.0)
    close(EXPECTED + 0.9e-6 * EXPECTED.abs().max())


@pytest.mark.parametrize(
    ("actual", "message"),
    [
        (EXPECTED + 1.1e-6 * EXPECTED.abs().max(), "error 2"),
        (with_value(float("nan")), "1 NaN, first at (1, 2, 3)"),
        (torch.full_like(EXPECTED, float("nan")), "30 NaN"),
        (with_value(float("inf")), "infinity at (1, 2, 3): got inf"),
        (torch.zeros_like(EXPECTED), "error"),
        (torch.full_like(EXPECTED, EXPECTED.mean().item()), "error"),
        (EXPECTED.mean(2, keepdim=True).expand_as(EXPECTED), "error"),
        (EXPECTED.flip(0), "error"),
        (EXPECTED.flip(1), "error"),
        (EXPECTED.roll(1, 2), "error"),
        (-EXPECTED, "error"),
        (2 * EXPECTED, "error"),
        (EXPECTED.double(), "dtype torch.float64, expected torch.float32"),
        (EXPECTED.bfloat16(), "dtype"),
        (EXPECTED[:1], "shape (1, 3, 5), expected (2, 3, 5)"),
        (EXPECTED[:, :, :1], "shape"),
        (EXPECTED[0], "shape (3, 5)"),
        (EXPECTED.reshape(3, 2, 5), "shape"),
        (torch.zeros(()), "shape ()"),
    ],
)
def test_rejects(actual, message):
    with pytest.raises(AssertionError) as raised:
        close(actual)
    assert str(raised.value).startswith("values: ")
    assert message in str(raised.value)


def test_says_where_and_how_much():
    with pytest.raises(AssertionError, match=r"error 1.000e\+00 at \(1, 2, 3\) .*allowed 1.0e-06 of the largest"):
        close(with_value(EXPECTED[1, 2, 3] + 1))


def test_a_broadcastable_expectation_is_rejected_too():
    with pytest.raises(AssertionError, match="shape"):
        close(EXPECTED, EXPECTED[:1])
    with pytest.raises(AssertionError, match="shape"):
        assert_identical(EXPECTED, EXPECTED[:1], what="values")


def test_nan_is_never_expected():
    nan = with_value(float("nan"))
    with pytest.raises(AssertionError, match="expected tensor holds NaN"):
        close(nan, nan)
    with pytest.raises(AssertionError, match="1 of 30 numbers differ"):
        assert_identical(nan, nan, what="values")


def test_infinities_must_agree_in_place_and_sign():
    infinite = with_value(float("inf"))
    close(infinite.clone(), infinite)
    with pytest.raises(AssertionError, match="infinity"):
        close(with_value(float("-inf")), infinite)
    with pytest.raises(AssertionError, match="infinity"):
        close(EXPECTED, infinite)
    with pytest.raises(AssertionError, match="error"):  # the infinity must not raise the allowed error
        close(infinite + 1e-3, infinite)


def test_nothing_to_compare_is_a_failure():
    with pytest.raises(AssertionError, match="nothing to compare"):
        close(EXPECTED[:0], EXPECTED[:0])


def test_zeros_are_expected_exactly():
    zeros = torch.zeros(3)
    close(zeros, zeros)
    with pytest.raises(AssertionError, match="error 1"):
        close(torch.tensor([0.0, 1e-30, 0.0]), zeros)


def test_identical_sees_the_last_bit():
    assert_identical(EXPECTED.clone(), EXPECTED, what="values")
    moved = with_value(torch.nextafter(EXPECTED[1, 2, 3], torch.tensor(9.0)))
    with pytest.raises(AssertionError, match=r"1 of 30 numbers differ, first at \(1, 2, 3\)"):
        assert_identical(moved, EXPECTED, what="values")
    with pytest.raises(AssertionError, match="dtype"):
        assert_identical(EXPECTED.double(), EXPECTED, what="values")


def test_largest_error_is_relative_and_never_hides_nan():
    assert largest_error(EXPECTED * 1.5, EXPECTED) == pytest.approx(0.5)
    assert largest_error(with_value(float("nan")), EXPECTED) == float("inf")
