"""Shaw's keys against a triple loop, and their clipping."""

import math

import pytest
import torch

from regard import AttentionLayer, Heads
from regard.core.errors import ConfigError
from regard.position import build_position

DIM, HEADS, WIDTH = 12, 3, 4


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(causal: bool, spec: str = "softmax", clip: int = 3, **options) -> AttentionLayer:
    position = f"shaw_keys(max_distance={clip}, std=1.0)"
    return AttentionLayer(DIM, spec, heads=HEADS, position=position, causal=causal, **options).double()


def heads_of(x, layer):
    return (
        (x @ p.weight.T).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        for p in (layer.projections.query, layer.projections.key, layer.projections.value)
    )


@pytest.mark.parametrize("clip", [0, 3, 40])
@pytest.mark.parametrize("causal", [True, False])
def test_a_layer_equals_the_loop_over_queries_keys_and_channels(causal, clip):
    n = 9
    layer = build(causal, clip=clip)
    table = layer.position.table
    assert table.shape == ((clip + 1 if causal else 2 * clip + 1), WIDTH)
    x = randn(2, n, DIM)
    q, k, v = heads_of(x, layer)
    logits = torch.full((2, HEADS, n, n), -math.inf, dtype=torch.float64)
    for i in range(n):
        for j in range(i + 1 if causal else n):
            a = table[max(-clip, min(clip, j - i)) + clip]
            logits[:, :, i, j] = sum(q[:, :, i, c] * (k[:, :, j, c] + a[c]) for c in range(WIDTH)) / math.sqrt(WIDTH)
    wanted = (logits.softmax(-1) @ v).transpose(1, 2).flatten(2) @ layer.projections.output.weight.T
    assert (layer(x).hidden - wanted).abs().max() < 1e-10


def test_a_window_takes_them_as_the_full_softmax_does():
    """local reads distances 0 .. 3 only; the same table under a mask of the window."""
    n = 11
    layer = build(True, "local(window=3)")
    x = randn(1, n, DIM)
    q, k, v = heads_of(x, layer)
    distance = torch.arange(n)[:, None] - torch.arange(n)
    keys = k[:, :, None] + layer.position.table[(3 - distance).clamp(0, 3)]
    logits = (q[:, :, :, None] * keys).sum(-1) / math.sqrt(WIDTH)
    logits = logits.masked_fill((distance < 0) | (distance > 3), -math.inf)
    wanted = (logits.softmax(-1) @ v).transpose(1, 2).flatten(2) @ layer.projections.output.weight.T
    assert (layer(x).hidden - wanted).abs().max() < 1e-10


def test_far_distances_share_one_label_at_any_length():
    layer = build(True)
    bias = layer.position.bias(randn(1, HEADS, 1, WIDTH), 0, 70_000)
    assert bias.relative.shape == (1, 70_001, WIDTH)
    assert torch.equal(bias.relative[0, :-3], layer.position.table[:1].expand(69_998, -1))
    assert not torch.equal(bias.relative[0, -3], layer.position.table[0])


def test_a_negative_clip_is_refused():
    with pytest.raises(ConfigError, match="max_distance >= 0, got -1"):
        build_position("shaw_keys(max_distance=-1)", Heads(count=1, key_dim=4), 4)
