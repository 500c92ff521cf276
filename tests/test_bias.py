import pytest
import torch

from regard.core.bias import ScoreBias
from regard.core.errors import ShapeError


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_logits_equal_a_loop_over_pairs():
    batch, heads, dim, low, high = 2, 3, 4, -2, 9
    queries, keys = torch.tensor([3, 4, 9]), torch.tensor([0, 2, 3, 5, 9])
    curve, query = draw(heads, high - low + 1), draw(batch, heads, 3, dim, seed=1)
    relative, table = draw(heads, high - low + 1, dim, seed=2), draw(batch, 1, 3, 5, seed=3)
    got = ScoreBias(high=high, curve=curve, query=query, relative=relative, table=table).logits(queries, keys)
    for b in range(batch):
        for h in range(heads):
            for a, i in enumerate(queries.tolist()):
                for c, j in enumerate(keys.tolist()):
                    want = table[b, 0, a, c]
                    if low <= i - j <= high:
                        column = high - (i - j)
                        want = want + curve[h, column] + query[b, h, a] @ relative[h, column]
                    assert abs(got[b, h, a, c] - want) < 1e-12


def test_boolean_table_keeps_true():
    got = ScoreBias(table=torch.tensor([[[[True, False]]]])).logits(torch.tensor([1]), torch.tensor([0, 1]))
    assert got.tolist() == [[[[0.0, float("-inf")]]]]


def test_halves_are_refused():
    with pytest.raises(ShapeError, match="together"):
        ScoreBias(query=draw(1, 1, 1, 2))
    with pytest.raises(ShapeError, match="distances"):
        ScoreBias(curve=draw(1, 3), query=draw(1, 1, 1, 2), relative=draw(1, 4, 2))


def test_heads_picks_every_part_but_shared_ones():
    bias = ScoreBias(high=2, curve=draw(4, 3), query=draw(1, 4, 2, 5), relative=draw(1, 3, 5), table=draw(1, 4, 2, 2))
    some = bias.heads(slice(1, 3))
    where = torch.arange(2)
    assert torch.equal(some.logits(where, where), bias.logits(where, where)[:, 1:3])
