"""strided_union: literal key sets, two-step coverage, its state."""

import pytest
import torch

from regard import ConfigError, Heads, UnsupportedError, build


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
        for impl in ("auto", "torch") if n % 13 == 0 else ("auto",):
            assert keys_of(f"strided_union(stride={stride}, impl={impl})", n) == [expected], n


def test_two_layers_reach_every_earlier_position(keys_of, reachable):
    (sets,) = keys_of("strided_union(stride=6)", 40)
    assert torch.equal(reachable(sets, sets, residual=False), torch.ones(40, 40).tril() > 0)


def test_decoding(decodes):
    decodes("strided_union(stride=4)", lambda i, h: {j for j in range(i + 1) if i - j <= 4 or (i - j) % 4 == 0})


def test_a_long_sequence_is_the_dense_softmax_over_its_sets():
    n, stride = 300, 17
    q, k, v = torch.randn(3, 1, 2, n, 8, generator=torch.Generator().manual_seed(0)).double()
    seen = torch.tensor([[j <= i and (i - j <= stride or (i - j) % stride == 0) for j in range(n)] for i in range(n)])
    weights = (q @ k.mT / 8**0.5).masked_fill(~seen, float("-inf")).softmax(-1)
    union = build(f"strided_union(stride={stride})", Heads(count=2, key_dim=8, causal=True))
    torch.testing.assert_close(union(q, k, v).values, weights @ v, rtol=0, atol=1e-10)


def test_refusals():
    with pytest.raises(ConfigError, match="option stride=0 is not valid: Input should be greater than or equal to 1"):
        build("strided_union(stride=0)", Heads(count=1, key_dim=4, causal=True))
    with pytest.raises(UnsupportedError, match="past keys; local_atrous"):
        build("strided_union", Heads(count=1, key_dim=4))
