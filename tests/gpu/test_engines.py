"""Engines that only a GPU has, in float32 beside ours: FlexAttention, Triton; and the buffers of ours there."""

import pytest
import torch

from regard import Heads, build
from regard.core.bias import ScoreBias
from regard.engines.gpu.flex import flexed
from regard.engines.kernels import forced
from regard.engines.tiles import tiled_attention
from regard.patterns import Pattern, block, causal, everything, first, per_head, random_blocks, strided, window
from regard.testing.compare import assert_close

TOLERANCE = 2e-5
"""of the largest number, in float32: FlexAttention takes powers of 2 of float32 logits"""
PATTERNS = [
    causal & window(150),
    causal & (window(10) | strided(16)),
    block(64) | first(3),
    everything,
    causal & per_head(window(20), everything, window(20), block(40)),
    random_blocks(100, torch.tensor([[0, 2], [1, -1], [3, 0]])),
]


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.text)
def test_flex_is_the_tiles(pattern: Pattern) -> None:
    """Values, log-sum-exp and gradients, with a mask and a bias by distance, of grouped heads."""
    q, k, v = (draw(2, count, 300, 16, seed=at) for at, count in enumerate((4, 2, 2)))
    mask = torch.rand(2, 300, generator=torch.Generator().manual_seed(1)) > 0.3
    for key_mask, biased in ((None, False), (mask, True)):
        results = []
        for engine, device, dtype in ((flexed, "cuda", torch.float32), (tiled_attention, "cpu", torch.float64)):
            leaves = [x.to(device, dtype).requires_grad_() for x in (q, k, v)]
            bias = ScoreBias(high=299, curve=draw(4, 599, seed=7).to(device, dtype)) if biased else None
            given = {"key_mask": None if key_mask is None else key_mask.to(device), "bias": bias, "scale": 0.3}
            values, lse = engine(*leaves, pattern, query_positions=0, **given)
            slopes = torch.autograd.grad((values * draw(*values.shape, seed=9).to(values)).sum(), leaves)
            results.append([x.detach().cpu().double() for x in (values, lse, *slopes)])
        for name, one, other in zip(("values", "lse", "q", "k", "v"), *results, strict=True):
            assert_close(one, other, tolerance=TOLERANCE, what=f"{name}, {biased=}")


@pytest.mark.parametrize("spec", ["local(window=40)", "strided_union(stride=16)", "fixed_union(stride=16, columns=4)"])
def test_flex_streams(spec: str) -> None:
    """In pieces with a state as in one call."""
    heads = Heads(count=4, key_dim=16, causal=True)
    q, k, v = (draw(2, 4, 300, 16, seed=at).float().cuda() for at in range(3))
    mechanism = build(spec, heads).cuda()
    with forced("flex"):
        whole, state, pieces = mechanism(q, k, v).values, mechanism.initial_state(2, device=q.device, dtype=q.dtype), []
        for a, b in ((0, 130), (130, 131), (131, 300)):
            values, state, *_ = mechanism(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], state=state)
            pieces.append(values)
    assert_close(torch.cat(pieces, 2), whole, tolerance=TOLERANCE, what="pieces")


def test_triton_is_the_sum() -> None:
    """The mechanism with kernels of its own, whole and in pieces, beside the chunked operator."""
    heads = Heads(count=4, key_dim=16, causal=True)
    q, k, v = (draw(2, 4, 300, 16, seed=at).float().cuda() for at in range(3))
    linear = build("linear", heads).cuda()
    leaves, results, slopes = [x.requires_grad_() for x in (q, k, v)], [], []
    for engine in ("triton", ""):
        with forced(engine):
            results.append(linear(*leaves).values)
            slopes.append(torch.autograd.grad(results[-1].square().sum(), leaves))
    for name, one, other in zip("qkv", *slopes, strict=True):
        assert_close(one, other, tolerance=1e-4, what=f"gradient of {name}")
    assert_close(results[0].detach(), results[1].detach(), tolerance=TOLERANCE, what="values")
    state, pieces = linear.initial_state(2, device=q.device, dtype=q.dtype), []
    with forced("triton"):
        for a, b in ((0, 130), (130, 131), (131, 300)):
            values, state, *_ = linear(*(x[:, :, a:b].detach() for x in leaves), state=state)
            pieces.append(values)
    assert_close(torch.cat(pieces, 2), results[1].detach(), tolerance=TOLERANCE, what="pieces")


def test_half_precision_chooses_kernels() -> None:
    q, k, v = (draw(2, 4, 1100, 16, seed=at).to("cuda", torch.bfloat16) for at in range(3))
    for spec, engine in (("linear", "triton"), ("local(window=40)", "flex")):
        mechanism = build(spec, Heads(count=4, key_dim=16, causal=True)).to("cuda", torch.bfloat16)
        with forced(engine):
            expected = mechanism(q, k, v).values
        assert torch.equal(mechanism(q, k, v).values, expected)
