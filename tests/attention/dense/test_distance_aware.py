"""Logits rescaled by distance, against the published formula, one pair at a time."""

import math

import pytest
import torch

import regard
from regard.core.errors import UnsupportedError


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(slope: list[float], ceiling: list[float], **heads) -> torch.nn.Module:
    mechanism = regard.build("distance_aware", regard.Heads(count=len(slope), **heads)).double().eval()
    with torch.no_grad():
        mechanism.slope.copy_(torch.tensor(slope, dtype=torch.float64))
        mechanism.ceiling.copy_(torch.tensor(ceiling, dtype=torch.float64))
    return mechanism


def curve(mechanism: torch.nn.Module, length: int) -> torch.Tensor:
    """f at distances 0 .. length - 1, read off the weights of the last query: every q . k / sqrt(d) is 1."""
    one = torch.ones(1, 1, length, 1, dtype=torch.float64)
    weights = regard.weights(mechanism, one, one)[0, 0, -1].flip(0)
    return torch.log(weights / weights[0]) + 1  # f(0) = 1


@pytest.mark.parametrize("causal", [True, False])
def test_pairs_one_at_a_time(causal: bool) -> None:
    slope, ceiling, length = [0.7, -0.3], [0.5, -1.5], 11
    mechanism = build(slope, ceiling, key_dim=3, value_dim=2, kv_count=1, causal=causal)
    q, k, v = draw(1, 2, length, 3), draw(1, 1, length, 3, seed=1), draw(1, 1, length, 2, seed=2)
    got = mechanism(q, k, v).values[0]
    for h in range(2):
        for i in range(length):
            seen = range(i + 1 if causal else length)
            odds = []
            for j in seen:
                r = slope[h] * abs(i - j)
                f = (1 + math.exp(ceiling[h])) / (1 + math.exp(ceiling[h] - r))
                odds.append(math.exp(max(0.0, float(q[0, h, i] @ k[0, 0, j])) * f / math.sqrt(3)))
            expected = sum(odd * v[0, 0, j] for odd, j in zip(odds, seen, strict=True)) / sum(odds)
            torch.testing.assert_close(got[h, i], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_no_slope_is_softmax_of_relu(causal: bool) -> None:
    mechanism = build([0.0, 0.0], [3.0, -2.0], key_dim=4, causal=causal)
    q, k, v = (draw(2, 2, 13, 4, seed=s) for s in range(3))
    logits = torch.relu(q @ k.mT) / 2
    if causal:
        logits = logits.masked_fill(torch.ones(13, 13).triu(1).bool(), -math.inf)
    torch.testing.assert_close(mechanism(q, k, v).values, logits.softmax(-1) @ v, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ceiling", [-2.0, 0.0, 1.5])
def test_f_is_one_at_home_monotone_and_bounded(ceiling: float) -> None:
    """f(0) = 1; rising to 1 + e^beta with w > 0 (the survey lost the bound), falling to 0 with w < 0."""
    far, near = (curve(build([slope], [ceiling], key_dim=1, causal=True), 60) for slope in (0.4, -0.4))
    bound = 1 + math.exp(ceiling)
    assert (far.diff() > 0).all()
    assert (near.diff() < 0).all()
    assert far.max() < bound
    assert float(far[-1]) == pytest.approx(bound, rel=1e-3)
    assert 0 < float(near[-1]) < 1e-3 * bound
    golden = (1 + math.exp(ceiling)) / (1 + math.exp(ceiling - 0.4 * 3))
    assert float(far[3]) == pytest.approx(golden, abs=1e-10)


@pytest.mark.parametrize("reach", [800.0, -800.0])
def test_f_where_its_exponentials_overflow(reach: float) -> None:
    """At R = -800 the published quotient is finite, but its gradient is inf / inf."""
    mechanism = build([reach], [1.0], key_dim=1, causal=True)
    expected = [1.0, *([1 + math.e] * 2 if reach > 0 else [0.0] * 2)]
    assert curve(mechanism, 3).tolist() == pytest.approx(expected, abs=1e-10)
    leaves = [draw(1, 1, 6, 1, seed=s).requires_grad_() for s in range(3)]
    grads = torch.autograd.grad(mechanism(*leaves).values.square().sum(), [*leaves, mechanism.slope, mechanism.ceiling])
    assert all(g.isfinite().all() for g in grads)


def test_the_quotient_as_published_has_no_gradient_there() -> None:
    slope, beta = torch.tensor(-800.0, dtype=torch.float64, requires_grad=True), torch.tensor(1.0, dtype=torch.float64)
    ((1 + torch.exp(beta)) / (1 + torch.exp(beta - slope))).backward()
    assert slope.grad.isnan()


def test_a_zero_logit_stays_zero_at_every_distance() -> None:
    """Where nothing matches the weights are equal, near and far alike, whatever w and beta."""
    mechanism = build([2.0, -2.0], [1.0, 1.0], key_dim=4)
    k = draw(1, 2, 9, 4).abs()
    weights = regard.weights(mechanism, -k, k)
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / 9), rtol=0, atol=1e-12)


def test_two_sequences_have_no_distance() -> None:
    mechanism = build([0.5], [0.5], key_dim=4)
    with pytest.raises(UnsupportedError, match="two sequences have no distance"):
        mechanism(draw(1, 1, 2, 4), draw(1, 1, 5, 4), draw(1, 1, 5, 4))
