"""randomized: unbiased where the published code and ratios of estimates are not, its noise, its special cases."""

import math

import pytest
import torch
from torch import Tensor

from regard import ConfigError, Heads, build

SCALE = 1.3
"""of q and k in the Monte-Carlo tests: large enough that a biased estimate shows"""
POSITIONS, SAMPLES = 20_000, 20


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sequence(n: int, m: int | None = None, *, heads: int = 2, kv_heads: int = 2, seed: int = 0) -> list[Tensor]:
    shapes = ((2, heads, n, 4), (2, kv_heads, m or n, 4), (2, kv_heads, m or n, 3))
    return [draw(*shape, seed=100 * seed + i) for i, shape in enumerate(shapes)]


def one_query_many_times() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A query at many positions, which draw independently, five keys and values, and softmax attention."""
    q, k, v = SCALE * draw(1, 1, 1, 4, seed=3), SCALE * draw(1, 1, 5, 4, seed=4), draw(1, 1, 5, 3, seed=5)
    return q, k, v, torch.softmax(q @ k.mT / 2, -1)[0, 0] @ v[0, 0]


def z_scores(drawn: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(mean - target) in standard errors, and these, over the rows of `drawn`."""
    error = drawn.std(0) / len(drawn) ** 0.5
    return (drawn.mean(0) - target) / error, error


@pytest.mark.parametrize(("form", "unbiased"), [("exact", True), ("official", False)])
def test_the_mean_is_softmax_attention(form: str, unbiased: bool) -> None:
    """400,000 samples. Power: five standard errors are less than 1 % of the largest value."""
    q, k, v, target = one_query_many_times()
    mechanism = build("randomized", Heads(count=1, key_dim=4, value_dim=3), form=form, num_samples=SAMPLES)
    drawn = mechanism(q.expand(-1, -1, POSITIONS, -1), k, v).values[0, 0]
    z, error = z_scores(drawn, target[0])
    assert 5 * error.max() < 0.01 * v.abs().max()
    worst = z.abs().max().item()
    assert worst < 5 if unbiased else worst > 10


def test_the_mean_is_softmax_attention_at_every_causal_row() -> None:
    """The mixture and f are over the keys up to each query: 1,500 heads of 8 samples on one sequence of 6."""
    heads, n = 1500, 6
    q, k, v = (SCALE * draw(1, 1, n, 4, seed=6), SCALE * draw(1, 1, n, 4, seed=7), draw(1, 1, n, 3, seed=8))
    mechanism = build("randomized", Heads(count=heads, key_dim=4, value_dim=3, kv_count=1, causal=True), num_samples=8)
    drawn = mechanism(q.expand(-1, heads, -1, -1), k, v).values[0]
    target = build("softmax", Heads(count=1, key_dim=4, value_dim=3, causal=True))(q, k, v).values[0, 0]
    torch.testing.assert_close(drawn[:, 0], v[0, :, 0].expand(heads, -1), rtol=0, atol=1e-12)
    z, error = z_scores(drawn[:, 1:], target[1:])
    assert 5 * error.max() < 0.05 * v.abs().max()
    assert z.abs().max() < 5


def test_evaluating_at_the_mean_is_biased() -> None:
    q, k, v, target = one_query_many_times()
    found = build("randomized(form=mean)", Heads(count=1, key_dim=4, value_dim=3))(q, k, v).values[0, 0]
    assert (found - target).abs().max() > 0.02 * v.abs().max()


def test_a_ratio_of_estimates_is_biased() -> None:
    """Performer with as many features as randomized has samples: 1,500 heads draw independently."""
    q, k, v, target = one_query_many_times()
    heads = 1500
    ratio = build(
        "performer", Heads(count=heads, key_dim=4, value_dim=3), num_features=4, orthogonal=False, norms="chi"
    ).double()
    z, _ = z_scores(ratio(*(x.expand(-1, heads, -1, -1) for x in (q, k, v))).values[0, :, 0], target[0])
    assert z.abs().max() > 10
    unbiased = build("randomized", Heads(count=heads, key_dim=4, value_dim=3, kv_count=1), num_samples=4)
    z, _ = z_scores(unbiased(q.expand(-1, heads, -1, -1), k, v).values[0, :, 0], target[0])
    assert z.abs().max() < 5


@pytest.mark.parametrize("causal", [True, False])
def test_double_loop_of_the_mean(causal: bool) -> None:
    heads = Heads(count=1, key_dim=4, value_dim=3, causal=causal)
    mechanism = build("randomized(form=mean)", heads)
    for n in range(1, 41):
        q, k, v = (x[:1, :1] for x in sequence(n, seed=n))
        qs, ks = (x[0, 0] / 4**0.25 for x in (q, k))
        expected = []
        for i in range(n):
            seen = range(i + 1 if causal else n)
            pi = [math.exp(float(qs[i] @ ks[j])) for j in seen]
            w = qs[i] + sum((p * ks[j] for p, j in zip(pi, seen, strict=True)), torch.zeros(4).double()) / sum(pi)
            odds = [math.exp(float(w @ ks[j] - ks[j] @ ks[j] / 2)) for j in seen]
            total = sum((p * v[0, 0, j] for p, j in zip(odds, seen, strict=True)), torch.zeros(3).double())
            expected.append(total / sum(odds))
        torch.testing.assert_close(mechanism(q, k, v).values[0, 0], torch.stack(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["exact", "official", "mean"])
def test_one_key_constant_values_and_the_hull(form: str) -> None:
    q, k, v = sequence(17)
    mechanism = build("randomized", Heads(count=2, key_dim=4, value_dim=3), form=form)
    one = mechanism(q, k[:, :, :1], v[:, :, :1]).values
    torch.testing.assert_close(one, v[:, :, :1].expand_as(one), rtol=0, atol=1e-12)
    same = mechanism(q, k, torch.full_like(v, 2.5)).values
    torch.testing.assert_close(same, torch.full_like(same, 2.5), rtol=0, atol=1e-12)
    out = mechanism(50 * q, 50 * k, v).values
    low, high = v.amin(2, keepdim=True) - 1e-12, v.amax(2, keepdim=True) + 1e-12
    assert bool(((out >= low) & (out <= high)).all())


def test_noise_belongs_to_seed_head_position_and_sample() -> None:
    q, k, v = (x[:1, :1] for x in sequence(70))
    q, k = q[:, :, :1].expand(-1, -1, 70, -1), k[:, :, :5]

    def run(count: int = 1, samples: int = 1, seed: int = 0, batch: int = 1) -> Tensor:
        heads = Heads(count=count, key_dim=4, value_dim=3, kv_count=1, seed=seed)
        mechanism = build("randomized", heads, num_samples=samples)
        given = (q.expand(batch, count, -1, -1), k.expand(batch, -1, -1, -1), v[:, :, :5].expand(batch, -1, -1, -1))
        return mechanism(*given).values

    plain = run()
    assert torch.unique(plain[0, 0], dim=0).shape[0] == 70  # no two positions share their noise
    assert torch.equal(run(batch=3), plain.expand(3, -1, -1, -1))
    torch.testing.assert_close(run(count=3)[:, :1], plain, rtol=0, atol=1e-12)
    assert not torch.allclose(run(count=3)[:, 1:2], plain)
    assert not torch.allclose(run(seed=1), plain)
    assert run(samples=64).var(2).mean() < 0.1 * plain.var(2).mean()


def test_training_draws_anew_and_evaluation_does_not() -> None:
    x = sequence(9)
    mechanism = build("randomized", Heads(count=2, key_dim=4, value_dim=3)).eval()
    first = mechanism(*x).values
    mechanism.train()
    one, two = mechanism(*x).values, mechanism(*x).values
    assert not torch.allclose(one, two)
    assert torch.equal(mechanism.eval()(*x).values, first)
    mechanism.redraw(torch.Generator().manual_seed(0))
    assert not torch.allclose(mechanism(*x).values, first)


def test_refusals() -> None:
    heads = Heads(count=1, key_dim=4)
    with pytest.raises(ConfigError, match="num_samples=0 is not valid: Input should be greater than or equal to 1"):
        build("randomized(num_samples=0)", heads)
    with pytest.raises(ConfigError, match="form='mean'"):
        build("randomized(form=mean, num_samples=2)", heads)
