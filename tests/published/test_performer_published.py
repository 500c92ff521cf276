"""Performer as published: its formula, and how far a later key moves earlier outputs."""

import pytest
import torch
from torch import Tensor

from regard import ConfigError, Heads, UnsupportedError, describe
from regard_lab.published.performer_published import PerformerPublished


def draw(count: int, dim: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, heads, count, dim, generator=g) for heads in (4, 2, 2))
    return q, k, v


def build(causal: bool = True, *, dim: int = 4, **options: object) -> PerformerPublished:
    return PerformerPublished(Heads(count=4, kv_count=2, key_dim=dim, causal=causal), **options).eval()


@pytest.mark.parametrize("causal", [True, False])
def test_it_is_its_formula(causal: bool) -> None:
    """exp(W x - |x|^2 / 2 - max(W x)) + 1e-4, the maximum over a query's features and over all keys' features."""
    mechanism = build(causal, num_features=12).double()
    q, k, v = (x.double() for x in draw(8, 4, seed=0))
    w = mechanism.projection.repeat_interleave(2, 0)
    x, y = q / 4**0.25, k.repeat_interleave(2, 1) / 4**0.25
    (a, half_a), (b, half_b) = ((z @ w.mT, z.square().sum(-1, keepdim=True) / 2) for z in (x, y))
    fq = (a - half_a - a.amax(-1, keepdim=True)).exp() + 1e-4
    fk = (b - half_b - b.amax((-1, -2), keepdim=True)).exp() + 1e-4
    pairs = fq @ fk.mT
    pairs = pairs.tril() if causal else pairs
    expected = pairs @ v.repeat_interleave(2, 1) / pairs.sum(-1, keepdim=True)
    assert (mechanism(q, k, v).values - expected).abs().max() < 1e-12
    assert (mechanism.definition(q, k, v) - expected).abs().max() < 1e-12


def test_a_large_later_key_moves_earlier_outputs_and_the_facts_say_so() -> None:
    """Beyond rounding: one maximum over all keys, and 1e-4 in every feature."""
    mechanism = build(dim=8, num_features=32)
    q, k, v = draw(100, 8, seed=2)
    later = k.clone()
    later[:, :, 99] *= 6
    moved = (mechanism(q, k, v).values - mechanism(q, later, v).values)[:, :, :99].abs().max()
    assert moved > 1e-2
    facts = describe("regard_lab.published.performer_published:PerformerPublished")
    assert facts.leaks
    assert facts.state == "none"
    assert facts.approximates is None
    with pytest.raises(UnsupportedError, match="largest key of the whole call"):
        mechanism.initial_state(1)


def test_other_maps_are_refused() -> None:
    with pytest.raises(ConfigError, match="feature_map='relu' is not valid: valid: positive"):
        build(feature_map="relu")
