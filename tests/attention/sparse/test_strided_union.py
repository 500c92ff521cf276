"""strided_union: literal key sets, two-step coverage, its state."""

import pytest

from regard import ConfigError, Heads, UnsupportedError, build
from regard.engines.kernels import forced


@pytest.mark.parametrize("stride", [1, 5, 8])
def test_key_sets(keys_of, stride):
    for n in range(1, 41):
        expected = []
        for i in range(n):
            keys = set()
            for j in range(n):
                if j <= i and (i - stride <= j or (i - j) % stride == 0):
                    keys.add(j)
            expected.append(keys)
        with forced("tiles" if n % 13 == 0 else ""):
            assert keys_of(f"strided_union(stride={stride})", n) == [expected], n


def test_refusals():
    with pytest.raises(ConfigError, match="option stride=0 is not valid: Input should be greater than or equal to 1"):
        build("strided_union(stride=0)", Heads(count=1, key_dim=4, causal=True))
    with pytest.raises(UnsupportedError, match="past keys; local_atrous"):
        build("strided_union", Heads(count=1, key_dim=4))
