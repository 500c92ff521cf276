"""fixed: literal key sets of its heads and of its layers, two-step coverage in one order, its state."""

import pytest
import torch

from regard import ConfigError, Heads, UnsupportedError, build, describe
from regard.engines.kernels import forced


@pytest.mark.parametrize(("stride", "columns"), [(4, 2), (5, 1), (8, 3), (6, 6)])
def test_key_sets(keys_of, stride, columns):
    for n in range(1, 41):
        blocks, summaries = [], [[], [], []]
        for i in range(n):
            own = set()
            for j in range(n):
                if j <= i and j // stride == i // stride:
                    own.add(j)
            blocks.append(own)
            for number in range(3):
                v = number % (stride // columns)
                seen = set()
                for j in range(n):
                    if j <= i and stride - columns * (v + 1) <= j % stride < stride - columns * v:
                        seen.add(j)
                summaries[number].append(seen)
        with forced("tiles" if n % 13 == 0 else ""):
            of = f"fixed(stride={stride}, columns={columns}"
            by_head = [blocks, summaries[0], blocks, summaries[1], blocks, summaries[2]]
            assert keys_of(of + ")", n, heads=6) == by_head, n
            assert keys_of(of + ", part=block)", n, heads=2) == [blocks, blocks], n
            assert keys_of(of + ", part=summary)", n, heads=3) == summaries, n


def test_the_first_summary_is_the_end_of_the_block(keys_of):
    """A2 = {j: j mod l in {l - c, ..., l - 1}} for one head, as in the paper."""
    (sets,) = keys_of("fixed(stride=8, columns=2, part=summary)", 20)
    assert sets[19] == {6, 7, 14, 15}
    assert sets[5] == set()


def test_facts_of_the_blocks():
    block, whole = describe("fixed(part=block)"), describe("fixed")
    assert (block.time, block.state, block.rows_sum_to_one) == (1, "window", True)
    assert (whole.time, whole.state, whole.rows_sum_to_one) == (2, "length", False)


def test_refusals():
    causal = Heads(count=2, key_dim=4, causal=True)
    for spec, message in (
        ("fixed(columns=0)", "option columns=0 is not valid: Input should be greater than or equal to 1"),
        ("fixed(stride=4, columns=5)", "columns <= stride, got columns=5, stride=4"),
        ("fixed(part=both)", "option part='both' is not valid: valid: block, heads, summary"),
    ):
        with pytest.raises(ConfigError, match=message):
            build(spec, causal)
    with pytest.raises(UnsupportedError, match="past keys"):
        build("fixed", Heads(count=2, key_dim=4))
    mask = torch.tensor([[False, True, True]])
    with pytest.raises(UnsupportedError, match="left padding"):
        build("fixed", causal)(*torch.zeros(3, 1, 2, 3, 4), key_mask=mask)
