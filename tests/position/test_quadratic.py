"""Quadratic positions against the paper's product v . r, and their limit: one slot."""

import math

import pytest
import torch

from regard import AttentionLayer, Heads
from regard.position import build_position


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("causal", [True, False])
def test_weights_are_the_softmax_of_the_papers_product(causal):
    """v_h = -alpha (1, -2 D), r_delta = (delta^2, delta), delta = j - i; the content logit is 0 (W_q = W_k = 0)."""
    n = 12
    layer = AttentionLayer(6, "softmax", heads=3, position="quadratic(alpha=0.3, std=2.0)", causal=causal).double()
    torch.nn.init.zeros_(layer.projections.query.weight)
    x = randn(2, n, 6)
    v = (x @ layer.projections.value.weight.T).unflatten(-1, (3, 2)).transpose(1, 2)
    logits = torch.full((3, n, n), -math.inf, dtype=torch.float64)
    for h, (alpha, centre) in enumerate(
        zip(layer.position.alpha.tolist(), layer.position.centre.tolist(), strict=True)
    ):
        for i in range(n):
            for j in range(i + 1 if causal else n):
                vector, r = (-alpha, 2 * alpha * centre), ((j - i) ** 2, j - i)
                logits[h, i, j] = vector[0] * r[0] + vector[1] * r[1]
    wanted = (logits.softmax(-1) @ v).transpose(1, 2).flatten(2) @ layer.projections.output.weight.T
    assert (layer(x).hidden - wanted).abs().max() < 1e-10


def test_half_precision_loses_nothing_where_the_head_looks():
    scheme = build_position("quadratic", Heads(count=1, key_dim=4, causal=True), 4)
    torch.nn.init.constant_(scheme.centre, -300.0)
    curve = scheme.bias(torch.zeros(1, 1, 1, 4, dtype=torch.bfloat16), 0, 1000).curve
    assert curve.dtype == torch.bfloat16
    assert curve[0, 1000 - 300].item() == 0
    assert curve[0, 1000 - 301].item() == curve[0, 1000 - 299].item() == -1


def test_causal_heads_begin_by_looking_back():
    heads = {causal: Heads(count=64, key_dim=4, causal=causal) for causal in (True, False)}
    centres = {causal: build_position("quadratic", heads[causal], 4).centre for causal in heads}
    assert (centres[True] <= 0).all()
    assert torch.equal(centres[False].abs(), -centres[True])
    assert (centres[False] > 0).any()


def test_gradients_reach_alpha_and_centre():
    scheme = build_position("quadratic", Heads(count=2, key_dim=4, causal=True), 8).double()
    leaves = tuple(p.detach().requires_grad_() for p in (scheme.alpha, scheme.centre))

    def logits(alpha, centre):
        return torch.func.functional_call(
            scheme, {"alpha": alpha, "centre": centre}, (torch.zeros(1, 2, 1, 4).double(), 0, 6)
        )

    scheme.forward = lambda q, low, high: scheme.bias(q, low, high).curve
    assert torch.autograd.gradcheck(logits, leaves)
