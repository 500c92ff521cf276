"""The comparison that every check and test uses: strict about dtype, shape and special values, relative to the largest
output."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["assert_close", "assert_gradients", "assert_identical", "largest_error", "refused", "require"]


class Failure(AssertionError):
    """A check that does not hold."""


def require(condition: bool, message: str) -> None:
    """Fail the check unless `condition`; unlike `assert` it survives `python -O`."""
    if not condition:
        raise Failure(message)


def refused(what: str, expected: type[Exception], attempt: Callable[..., object], *args: Any, **named: Any) -> None:
    """Require that a call of `attempt` with these arguments ends by an error of this kind, and by no other."""
    try:
        attempt(*args, **named)
    except expected:
        return
    except Exception as error:
        raise Failure(f"{what}: expected {expected.__name__}, got {type(error).__name__}: {error}") from error
    raise Failure(f"{what} was accepted")


def assert_close(actual: Tensor, expected: Tensor, *, tolerance: float, what: str, source: str = "") -> None:
    """Require max |actual - expected| <= tolerance * max |expected|.

    Args:
        actual: the result under test.
        expected: the right result; must not hold NaN.
        tolerance: relative to the largest expected magnitude.
        what: one phrase that opens the message.
        source: where the tolerance comes from, if it was derived; it closes the message.

    Raises:
        AssertionError: another dtype or shape (nothing is cast or broadcast), no element, NaN, infinities in other
            places, or an error above the tolerance; the message says where and how much.

    Example:
        >>> import torch
        >>> assert_close(torch.ones(2), torch.ones(2), tolerance=0, what="ones")
    """
    _require_same_kind(actual, expected, what)
    if expected.isnan().any():
        raise AssertionError(f"{what}: the expected tensor holds NaN, so nothing can be compared with it")
    if actual.isnan().any():
        raise AssertionError(f"{what}: {int(actual.isnan().sum())} NaN, first at {_first(actual.isnan())}")
    infinite = actual.isinf() | expected.isinf()
    wrong = infinite & (actual != expected)
    if wrong.any():
        at = _first(wrong)
        raise AssertionError(f"{what}: infinity at {at}: got {actual[at].item()}, expected {expected[at].item()}")
    error = torch.where(infinite, 0.0, (actual.double() - expected.double()).abs())
    largest = torch.where(infinite, 0.0, expected.double().abs()).max().item()
    if error.max().item() > tolerance * largest:
        at = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))
        share = f", which is {error.max().item() / largest:.1e} of it" if largest else ""
        raise AssertionError(
            f"{what}: error {error.max().item():.3e} at {at} (got {actual[at].item():.6g}, expected "
            f"{expected[at].item():.6g}); allowed {tolerance:.1e} of the largest expected magnitude {largest:.3g}"
            f"{share}{f' ({source})' if source else ''}"
        )


def assert_gradients(
    actual: Mapping[str, Tensor | None], expected: Mapping[str, Tensor | None], *, tolerance: float, what: str
) -> None:
    """Require each gradient within its own tolerance, relative to its largest magnitude, and in the same places.

    One below 1e-6 of the largest of them all is rounding: where every query sees one key, queries have no gradient, and
    an algorithm that divides equal numbers leaves some ulps. It is compared as if it were 1e-6 of the largest.

    Raises:
        AssertionError: as `assert_close`.
    """
    largest = max((x.abs().max().item() for x in expected.values() if x is not None), default=0.0)
    for name, wanted in expected.items():
        got = actual[name]
        if (got is None) is not (wanted is None):
            raise AssertionError(f"gradient of {name} appears or vanishes, {what}")
        if got is None or wanted is None:
            continue
        of_this = wanted.abs().max().item()
        scale = 1.0 if of_this >= 1e-6 * largest else 1e-6 * largest / of_this if of_this else 0.0
        if scale:
            assert_close(got, wanted, tolerance=tolerance * scale, what=f"gradient of {name}, {what}")
        elif got.abs().max().item() > tolerance * 1e-6 * largest:
            raise AssertionError(f"gradient of {name}, {what}: {got.abs().max().item():.3e}, expected 0")


def assert_identical(actual: Tensor, expected: Tensor, *, what: str) -> None:
    """Require the same dtype, shape and values, to the last bit (0.0 equals -0.0).

    Raises:
        AssertionError: anything differs, or anything is NaN.
    """
    _require_same_kind(actual, expected, what)
    wrong = actual != expected
    if wrong.any():
        at = _first(wrong)
        difference = (actual[at].double() - expected[at].double()).abs().item()
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} numbers differ, first at {at}: got "
            f"{actual[at].item():.9g}, expected {expected[at].item():.9g} (by {difference:.3e}); they must be identical"
        )


def largest_error(actual: Tensor, expected: Tensor) -> float:
    """max |actual - expected| / max |expected| in float64; 0 where they are equal, infinite where one is not finite."""
    off = (actual.double() - expected.double()).abs().max()
    error = off / expected.double().abs().max() if off else off
    return error.item() if error.isfinite() else float("inf")


def _require_same_kind(actual: Tensor, expected: Tensor, what: str) -> None:
    if actual.dtype != expected.dtype:
        raise AssertionError(f"{what}: dtype {actual.dtype}, expected {expected.dtype}")
    if actual.shape != expected.shape:
        raise AssertionError(f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if expected.numel() == 0:
        raise AssertionError(f"{what}: nothing to compare, the shape is {tuple(expected.shape)}")


def _first(wrong: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in wrong.nonzero()[0])
