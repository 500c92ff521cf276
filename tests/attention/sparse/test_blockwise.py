"""blockwise: literal key sets of permutations, causal where no block sees a later one, its limits."""

import pytest
import torch

from regard import ConfigError, Heads, LimitError, UnsupportedError, build, describe
from regard.engines.kernels import forced


@pytest.mark.parametrize(("blocks", "shift"), [(1, 1), (2, 1), (3, 1), (5, 2), (7, 0), (40, 3)])
def test_key_sets_of_shifts(keys_of, blocks, shift):
    size = 1
    while blocks * size < 40:
        size += 1
    for n in range(1, 41):
        expected = [[], [], []]
        for head in range(3):
            for i in range(n):
                target = (i // size + head * shift) % blocks
                expected[head].append({j for j in range(n) if j // size == target})
        with forced("tiles" if n % 13 == 0 else ""):
            spec = f"blockwise(blocks={blocks}, shift={shift})"
            assert keys_of(spec, n, heads=3, causal=False, max_length=40) == expected, n


def test_key_sets_of_permutations(keys_of):
    maps = ((2, 0, 1, 3), (-1, 0, 1, 2))
    for n in range(1, 41):
        expected = [
            [{j for j in range(n) if j // 10 == maps[head % 2][i // 10]} for i in range(n)] for head in range(3)
        ]
        assert keys_of(f"blockwise(blocks=4, block_size=10, permutations={maps})", n, heads=3, causal=False) == expected


def test_causal_key_sets(keys_of):
    maps = ((0, 1, 2, 3), (-1, 0, 1, 2))
    for n in range(1, 41):
        own = [{j for j in range(i + 1) if j // 10 == i // 10} for i in range(n)]
        before = [{j for j in range(i + 1) if j // 10 == i // 10 - 1} for i in range(n)]
        assert keys_of(f"blockwise(blocks=4, block_size=10, permutations={maps})", n, heads=2) == [own, before]
        assert keys_of("blockwise(blocks=4, shift=0)", n, heads=2, max_length=40) == [own, own]
        assert keys_of("blockwise(blocks=1)", n, max_length=40) == [[set(range(i + 1)) for i in range(n)]]


def test_the_size_of_a_block_comes_from_the_longest_sequence_and_not_from_the_call(keys_of):
    for n in (5, 20, 40):
        (sets,) = keys_of("blockwise(blocks=4)", n, causal=False, max_length=40)
        assert sets[0] == set(range(min(n, 10)))


def test_facts_follow_the_permutations():
    def of(spec):
        info = describe(spec)
        return info.supports.causal, info.state, info.rows_sum_to_one

    assert of("blockwise") == (False, "none", False)
    assert of("blockwise(shift=0)") == of("blockwise(blocks=3, shift=3)") == (True, "window", True)
    assert of("blockwise(blocks=1)") == (True, "length", True)
    assert of("blockwise(permutations=((0, 1), (-1, 0)))") == (True, "window", False)
    assert of("blockwise(permutations=((1, 0),))") == (False, "none", False)
    assert of("blockwise(shift=0, impl=reference)") == (True, "length", True)


def test_causal_heads_are_refused_where_a_block_sees_a_later_one():
    heads = Heads(count=2, key_dim=4, causal=True, max_length=8)
    for spec in ("blockwise", "blockwise(permutations=((1, 0),))"):
        with pytest.raises(
            UnsupportedError, match=r"a block sees a later one; shift=0, or permutations with pi\(b\) <= b"
        ):
            build(spec, heads)


def test_more_positions_than_the_blocks_hold():
    x = torch.zeros(1, 1, 9, 4)
    with pytest.raises(LimitError, match="max_length=8, got 9"):
        build("blockwise", Heads(count=1, key_dim=4, max_length=8))(x, x, x)
    with pytest.raises(LimitError, match="2 blocks of 4 positions, got 9"):
        build("blockwise(block_size=4)", Heads(count=1, key_dim=4))(x, x, x)
    causal = build("blockwise(block_size=4, shift=0)", Heads(count=1, key_dim=4, causal=True))
    state = causal(*[x[:, :, :8]] * 3, state=causal.initial_state(1)).state
    with pytest.raises(LimitError, match="got 9"):
        causal(*[x[:, :, :1]] * 3, state=state)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("blockwise(blocks=0)", "option blocks=0 is not valid: Input should be greater than or equal to 1"),
        ("blockwise(block_size=0)", "option block_size=0 is not valid: Input should be greater than or equal to 1"),
        ("blockwise(block_size=3)", "2 blocks of 3 positions do not hold"),
        ("blockwise(permutations=((0, 0),))", r"different blocks from 0 to 1, or -1 for none; got \(0, 0\)"),
        ("blockwise(permutations=((0, 2),))", r"got \(0, 2\)"),
        ("blockwise(permutations=((0, 1, 2),))", r"got \(0, 1, 2\)"),
        ("blockwise(permutations=())", r"got \(\)"),
        ("blockwise(shift=1, permutations=((1, 0),))", "leave out shift=1"),
    ],
)
def test_refusals(spec, message):
    with pytest.raises(ConfigError, match=message):
        build(spec, Heads(count=1, key_dim=4, max_length=8))


def test_a_size_is_needed():
    with pytest.raises(ConfigError, match=r"needs block_size, or Heads\.max_length"):
        build("blockwise", Heads(count=1, key_dim=4))
