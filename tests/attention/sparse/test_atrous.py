"""atrous: literal key sets, its state, its limits."""

import pytest
import torch

from regard import ConfigError, Heads, UnsupportedError, build
from regard.engines.kernels import forced


def test_the_reader_of_key_sets_notices_other_weights(keys_of):
    with pytest.raises(AssertionError, match="not 1 / count"):
        keys_of("softmax_plus_one", 5)


@pytest.mark.parametrize("dilation", [2, 7, 64])
@pytest.mark.parametrize("causal", [True, False])
def test_key_sets(keys_of, dilation, causal):
    for n in range(1, 41):
        expected = []
        for i in range(n):
            keys = set()
            for j in range(n):
                if (i - j) % dilation == 0 and (j <= i or not causal):
                    keys.add(j)
            expected.append(keys)
        with forced("tiles" if n % 13 == 0 else ""):
            assert keys_of(f"atrous(dilation={dilation})", n, causal=causal) == [expected], n


def test_refusals():
    with pytest.raises(
        ConfigError, match="atrous: option dilation=1 is not valid: Input should be greater than or equal to 2"
    ):
        build("atrous(dilation=1)", Heads(count=1, key_dim=4))
    with pytest.raises(UnsupportedError, match="same positions"):
        build("atrous", Heads(count=1, key_dim=4))(*(torch.zeros(1, 1, n, 4) for n in (3, 5, 5)))
