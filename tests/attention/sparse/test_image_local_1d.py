"""image_local_1d: literal key sets, its state, its limits."""

import pytest
import torch

from regard import ConfigError, Heads, UnsupportedError, build


@pytest.mark.parametrize(("size", "memory"), [(1, 0), (3, 4), (5, 5), (8, 2), (4, 11), (64, 3)])
def test_key_sets(keys_of, size, memory):
    for n in range(1, 41):
        expected = []
        for i in range(n):
            first = i
            while first % size:
                first -= 1
            keys = set()
            for j in range(n):
                if first - memory <= j <= i:
                    keys.add(j)
            expected.append(keys)
        for impl in ("auto", "torch") if n % 13 == 0 else ("auto",):
            spec = f"image_local_1d(block_size={size}, memory={memory}, impl={impl})"
            assert keys_of(spec, n) == [expected], n


@pytest.mark.parametrize("size", [3, 8])
def test_by_default_a_block_sees_itself_and_the_one_before(keys_of, size):
    for n in range(1, 41):
        expected = [{j for j in range(i + 1) if j // size in (i // size - 1, i // size)} for i in range(n)]
        assert keys_of(f"image_local_1d(block_size={size})", n) == [expected]


def test_decoding_keeps_the_block_and_the_memory(decodes):
    def keys(i, head):
        return {j for j in range(i + 1) if j >= i // 5 * 5 - 3}

    decodes("image_local_1d(block_size=5, memory=3)", keys)
    decodes(
        "image_local_1d(block_size=5, memory=3)",
        keys,
        kept=lambda length: {j for j in range(length) if j >= length // 5 * 5 - 3},
    )


def test_one_block_over_everything_is_softmax():
    q, k, v = torch.randn(3, 1, 2, 30, 8, generator=torch.Generator().manual_seed(0)).double()
    heads = Heads(count=2, key_dim=8, causal=True)
    expected = build("softmax", heads)(q, k, v).values
    found = build("image_local_1d(block_size=30, memory=0)", heads)(q, k, v).values
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_refusals():
    causal = Heads(count=1, key_dim=4, causal=True)
    for spec in ("image_local_1d(block_size=0)", "image_local_1d(memory=-1)"):
        with pytest.raises(ConfigError, match="block_size >= 1 and memory >= 0"):
            build(spec, causal)
    with pytest.raises(UnsupportedError, match="generated before"):
        build("image_local_1d", Heads(count=1, key_dim=4))
