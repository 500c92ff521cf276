"""Inner products with log gates: the dense engine, which has dropout, and the tile engine compute the same."""

import pytest
import torch

from regard.core.attention import Call
from regard.core.bias import ScoreBias
from regard.engines.dense import chunked, chunks, gated_dot_product
from regard.engines.dense.gated import GATED


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("queries", "keys"), [(1, 9), (20, 20), (70, 130)])
@pytest.mark.parametrize("elements", [1 << 18, 1 << 12])
def test_chunks_are_tiles(queries: int, keys: int, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ELEMENTS", elements)
    leaves = [draw(2, 4, queries, 8), draw(2, 4, keys, 8, seed=1), draw(2, 4, keys, 5, seed=2)]
    gates, curve = -draw(2, 4, keys, seed=3).abs(), draw(4, keys, seed=4)
    gates[0, 1, keys // 2] = -torch.inf
    leaves = [x.requires_grad_() for x in (*leaves, gates, curve)]
    q, k, v, gates, curve = leaves
    mask = torch.rand(2, keys, generator=torch.Generator().manual_seed(5)) > 0.3
    bias = ScoreBias(high=keys - 1, curve=curve)
    call = Call(key_mask=mask, bias=bias, causal=True, query_start=keys - queries)
    one = chunked(GATED, q * 0.4, k, v, call, [gates])
    other = gated_dot_product(q, k, v, gates, call, scale=0.4)[0]
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    way = draw(*one.shape, seed=6)
    found, wanted = (torch.autograd.grad((x * way).sum(), leaves) for x in (one, other))
    for got, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-11)


def test_dropout_drops_weights_and_leaves_the_log_sum_exp() -> None:
    q, k = draw(1, 2, 300, 4), draw(1, 1, 300, 4, seed=1)
    gates, v = -draw(1, 2, 300, seed=2).abs() / 50, torch.ones(1, 1, 300, 3, dtype=torch.float64)
    call = Call(causal=True, lse=True)
    kept, lse = gated_dot_product(q, k, v, gates, call, scale=0.5)
    torch.manual_seed(0)
    values, same = gated_dot_product(q, k, v, gates, call, scale=0.5, dropout=0.5)
    assert lse is not None
    assert same is not None
    assert torch.equal(same, lse)
    assert values.std() > 0.1
    assert (values - kept).mean().abs() < 0.05
