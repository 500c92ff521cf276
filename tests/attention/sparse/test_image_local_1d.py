"""image_local_1d: literal key sets, its state, its limits."""

import pytest
import torch

from regard import ConfigError, Heads, UnsupportedError, build
from regard.engines.kernels import forced


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
        with forced("tiles" if n % 13 == 0 else ""):
            spec = f"image_local_1d(block_size={size}, memory={memory})"
            assert keys_of(spec, n) == [expected], n


@pytest.mark.parametrize("size", [3, 8])
def test_by_default_a_block_sees_itself_and_the_one_before(keys_of, size):
    for n in range(1, 41):
        expected = [{j for j in range(i + 1) if j // size in (i // size - 1, i // size)} for i in range(n)]
        assert keys_of(f"image_local_1d(block_size={size})", n) == [expected]


def test_refusals():
    causal = Heads(count=1, key_dim=4, causal=True)
    for option, low in (("block_size=0", 1), ("memory=-1", 0)):
        with pytest.raises(ConfigError, match=f"option {option} is not valid: .* greater than or equal to {low}"):
            build(f"image_local_1d({option})", causal)
    with pytest.raises(UnsupportedError, match="generated before"):
        build("image_local_1d", Heads(count=1, key_dim=4))


def test_reach_is_the_outermost_distance_of_the_call():
    local = build("image_local_1d(block_size=5, memory=3)", Heads(count=1, key_dim=4, causal=True))
    state = local.initial_state(1)
    for past, keys, queries in ((0, 13, 13), (0, 5, 5), (0, 13, 1), (7, 4, 4), (7, 4, 2), (9, 1, 1), (10, 1, 1)):
        begun = local(*torch.zeros(3, 1, 1, past, 4), state=state).state if past else state
        distances = []
        for i in range(past + keys - queries, past + keys):
            distances.extend(i - j for j in range(i + 1) if j >= i // 5 * 5 - 3)
        assert local.bias_distances(queries, keys, begun) == (0, max(distances))


def test_a_reach_far_inside_is_bounded_from_outside():
    """Looking for the outermost distances stops early where a pattern leaves most of them out."""
    rule = build("pattern(rule='window(3) | first(1)')", Heads(count=1, key_dim=4))
    assert rule.bias_distances(100, 100) == (-3, 99)
    low, high = rule.bias_distances(5000, 5000)
    assert -4999 < low <= -3
    assert high == 4999
