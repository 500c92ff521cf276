"""strided: literal key sets of its heads and of its layers, two-step coverage, its state."""

import pytest

from regard import ConfigError, Heads, UnsupportedError, build, describe
from regard.engines.kernels import forced


def window(i, stride):
    return {j for j in range(i + 1) if i - stride <= j <= i}


@pytest.mark.parametrize("stride", [1, 3, 8])
def test_key_sets(keys_of, stride):
    for n in range(1, 41):
        first, second = [], []
        for i in range(n):
            near, far = set(), set()
            for j in range(n):
                if i - stride <= j <= i:
                    near.add(j)
                if j <= i and (i - j) % stride == 0:
                    far.add(j)
            first.append(near)
            second.append(far)
        with forced("tiles" if n % 13 == 0 else ""):
            of = f"strided(stride={stride}"
            assert keys_of(of + ")", n, heads=5) == [first, second, first, second, first], n
            assert keys_of(of + ", part=window)", n, heads=2) == [first, first], n
            assert keys_of(of + ", part=stride)", n, heads=2) == [second, second], n


def test_the_window_has_one_key_more_than_the_stride(keys_of):
    """As in the paper, A1 = {max(0, i - l), ..., i}; the public code has l keys."""
    (sets,) = keys_of("strided(stride=4, part=window)", 20)
    assert sets[10] == {6, 7, 8, 9, 10}


def test_facts_of_the_window():
    assert (describe("strided(part=window)").time, describe("strided(part=window)").state) == (1, "window")
    assert (describe("strided").time, describe("strided").state) == (2, "length")
    assert describe("strided(part=window, impl=reference)").time == 2


def test_refusals():
    causal = Heads(count=2, key_dim=4, causal=True)
    for spec, message in (
        ("strided(stride=0)", "option stride=0 is not valid: Input should be greater than or equal to 1"),
        ("strided(part=both)", "option part='both' is not valid: valid: heads, stride, window"),
    ):
        with pytest.raises(ConfigError, match=message):
            build(spec, causal)
    with pytest.raises(UnsupportedError, match="past keys"):
        build("strided", Heads(count=2, key_dim=4))
