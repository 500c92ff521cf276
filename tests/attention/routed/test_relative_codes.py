"""`vector_quantized(relative=True)` against SPEC D5 and B4: double loops, a dense form, Transformer-XL's positions."""

import math

import pytest
import torch
from torch import Tensor

import regard
from regard import Heads, UnsupportedError
from regard.layer import AttentionLayer
from regard.position import build_position
from regard.testing.compare import assert_close
from tests.attention.routed.test_vector_quantized import inputs, make, nearest, randn, unit


def placed(**options: object):
    """With biases that count: those of the start are small."""
    mechanism = make(relative=True, **options)
    with torch.no_grad():
        for seed, weight in enumerate(mechanism.parameters()):
            weight.copy_(randn(*weight.shape, seed=seed + 50))
    return mechanism


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def plus(a: list[float], b: list[float], scale: float) -> list[float]:
    return [x + y * scale for x, y in zip(a, b, strict=True)]


def loops(mechanism, q: Tensor, k: Tensor, v: Tensor, block_size: int) -> Tensor:
    """One pair at a time: u with every key, (q + v) . W r_(i-j) with those of the query's block and the one before."""
    q, k, out = unit(q), unit(k), torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    root, dim = q.shape[3] ** -0.25, q.shape[3]
    width, past = mechanism.distance_weight.shape[1], k.shape[2] - q.shape[2]
    for h in range(q.shape[1]):
        at = h // (q.shape[1] // k.shape[1])
        codes = (mechanism.code_sum / mechanism.code_count[..., None])[at].tolist()
        keys = [codes[nearest(vector, codes)] for vector in k[0, at].tolist()]
        u, w = mechanism.content_bias[h, 0].tolist(), mechanism.distance_weight[h].tolist()
        for row, query in enumerate(q[0, h].tolist()):
            i, odds = row + past, []
            content, place = plus(query, u, root), plus(query, mechanism.distance_bias[h, 0].tolist(), root)
            for j in range(i + 1):
                score = dot(content, keys[j])
                if i // block_size - j // block_size <= 1:
                    angles = [(i - j) / 10000 ** (2 * c / width) for c in range(width // 2)]
                    waves = [math.sin(x) for x in angles] + [math.cos(x) for x in angles]
                    score += root * sum(wave * dot(place, row) for wave, row in zip(waves, w, strict=True))
                odds.append(math.exp(score))
            assert len(w[0]) == dim
            out[0, h, row] = torch.tensor(odds, dtype=torch.float64) @ v[0, at, : i + 1] / sum(odds)
    return out


@pytest.mark.parametrize("block_size", [1, 3, 8, 64])
def test_blocks_are_dense_softmax_with_a_bias_in_the_recent_ones(block_size):
    mechanism = placed(num_codes=4, block_size=block_size)
    for n in (*range(1, 41),) if block_size == 3 else (1, 2, 7, 16, 25, 40):
        q, k, v = inputs(n)
        values = mechanism(q, k, v).values
        expected = loops(mechanism, q, k, v, block_size)
        assert_close(values, expected, tolerance=1e-10, what=f"{n} tokens")
        assert_close(mechanism.definition(q, k, v), expected, tolerance=1e-10, what=f"definition of {n} tokens")
        some = mechanism(q[:, :, n // 2 :], k, v).values
        assert_close(some, values[:, :, n // 2 :], tolerance=1e-10, what=f"the last queries of {n}")


def test_odd_widths_and_grouped_heads():
    mechanism = placed(num_codes=4, block_size=3, count=4, kv_count=2, key_dim=5)
    q, k, v = randn(1, 4, 17, 5), randn(1, 2, 17, 5, seed=1), randn(1, 2, 17, 5, seed=2)
    assert_close(mechanism(q, k, v).values, loops(mechanism, q, k, v, 3), tolerance=1e-10, what="groups of 2")


def test_codes_at_the_keys_give_the_scores_of_transformer_xl():
    """In one block, on queries and keys of root mean square 1, it is `softmax` with the position scheme."""
    n, root = 20, 6**0.25
    mechanism = placed(num_codes=n, block_size=n)
    q, k, v = inputs(n)
    mechanism.code_sum.copy_(unit(k)[0])
    heads = Heads(count=2, key_dim=6, value_dim=5, causal=True)
    position = build_position("transformer_xl", heads, 6).double()
    with torch.no_grad():
        position.content.copy_(mechanism.content_bias[:, 0])
        position.distance.copy_(mechanism.distance_bias[:, 0])
        position.relative.copy_(mechanism.distance_weight)
    bias = position.bias(root * unit(q), 0, n - 1)
    query, key = position.transform(root * unit(q), root * unit(k), torch.arange(n), torch.arange(n))
    wanted = regard.build("softmax", heads)(query, key, v, bias=bias).values
    assert_close(mechanism(q, k, v).values, wanted, tolerance=1e-10, what="softmax with transformer_xl")


def test_refusals():
    with pytest.raises(UnsupportedError, match="without causality no key is recent"):
        make(causal=False, relative=True)
    with pytest.raises(UnsupportedError, match="relative=True has a bias for recent ones"):
        AttentionLayer(12, "vector_quantized", heads=2, position="transformer_xl", causal=True)
    mechanism = make(relative=True, num_codes=4, block_size=3)
    with pytest.raises(UnsupportedError, match="left padding"):
        mechanism(*inputs(5), key_mask=torch.tensor([[False, True, True, True, True]]))
