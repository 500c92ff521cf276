"""Cosine attention, one pair at a time, and its invariance."""

import math

import pytest
import torch

import regard


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 6, 17])
def test_pairs_one_at_a_time(length: int, causal: bool) -> None:
    heads = regard.Heads(count=2, key_dim=3, value_dim=2, kv_count=1, causal=causal)
    mechanism = regard.build("cosine", heads).double()
    gains = [4.0, 17.0]
    with torch.no_grad():
        mechanism.log_gain.copy_(torch.tensor(gains, dtype=torch.float64).log())
    q, k, v = draw(1, 2, length, 3), draw(1, 1, length + 1, 3, seed=1), draw(1, 1, length + 1, 2, seed=2)
    got = mechanism(q, k, v).values[0]
    for head in range(2):
        for i in range(length):
            seen, odds = range(i + 2 if causal else length + 1), []
            for j in seen:
                x, y = q[0, head, i].tolist(), k[0, 0, j].tolist()
                cosine = sum(a * b for a, b in zip(x, y, strict=True)) / math.hypot(*x) / math.hypot(*y)
                odds.append(math.exp(gains[head] * cosine))
            expected = sum(odd * v[0, 0, j] for odd, j in zip(odds, seen, strict=True)) / sum(odds)
            torch.testing.assert_close(got[head, i], expected, rtol=0, atol=1e-12)


def test_golden_values() -> None:
    q = torch.tensor([[3.0, 4.0]], dtype=torch.float64)[None, None]
    k = torch.tensor([[4.0, 3.0], [-40.0, -30.0]], dtype=torch.float64)[None, None]
    v = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)[None, None]
    for gain in (10.0, 0.5):
        got = regard.attend(q, k, v, f"cosine(learned=False, gain={gain})").flatten().tolist()
        first = 1 / (1 + math.exp(-2 * 0.96 * gain))
        assert got == pytest.approx([first, 1 - first], abs=1e-12)
    start = regard.build("cosine", regard.Heads(count=1, key_dim=2))
    assert start.log_gain.exp().item() == pytest.approx(10.0, rel=1e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_lengths_of_queries_and_keys_do_not_matter(causal: bool) -> None:
    mechanism = regard.build("cosine", regard.Heads(count=2, key_dim=4, causal=causal)).double()
    q, k, v = draw(2, 2, 9, 4), draw(2, 2, 9, 4, seed=1), draw(2, 2, 9, 4, seed=2)
    expected = mechanism(q, k, v).values
    for other in (mechanism(3 * q, k, v).values, mechanism(q, k * draw(2, 2, 9, 1, seed=3).abs(), v).values):
        torch.testing.assert_close(other, expected, rtol=0, atol=1e-12)
    assert (mechanism(-q, k, v).values - expected).abs().max() > 0.1


def test_no_logit_exceeds_the_gain() -> None:
    q, k = 100 * draw(1, 1, 40, 4), 100 * draw(1, 1, 40, 4, seed=1)
    mechanism = regard.build("cosine(gain=2.0, learned=False)", regard.Heads(count=1, key_dim=4))
    rows = regard.weights(mechanism, q, k)
    ratios = rows.amax(-1) / rows.amin(-1)
    assert ratios.max() <= math.exp(4.0) * (1 + 1e-9)
    assert ratios.max() > math.exp(3.5)  # near both ends of the range


def test_vectors_of_zeros_are_neutral_and_differentiable() -> None:
    q, k, v = (draw(1, 1, 5, 4, seed=s) for s in range(3))
    q[:, :, 2], k[:, :, 3] = 0, 0
    leaves = [x.requires_grad_() for x in (q, k, v)]
    values = regard.attend(*leaves, "cosine(learned=False)")
    torch.testing.assert_close(values[0, 0, 2], v[0, 0].mean(0), rtol=0, atol=1e-12)
    grads = torch.autograd.grad(values.square().sum(), leaves)
    assert all(bool(grad.isfinite().all()) for grad in grads)


@pytest.mark.parametrize("length", [1e4, 1e-4])
def test_low_precision_divides_in_single(length: float) -> None:
    """65,504 is the largest float16: a sum of squares in float16 would overflow, or underflow."""
    q, k, v = (draw(1, 1, 8, 4, seed=s) for s in range(3))
    exact = regard.attend(q, k, v, "cosine(learned=False)")
    half = regard.attend((length * q).half(), (length * k).half(), v.half(), "cosine(learned=False)")
    assert (half.double() - exact).abs().max() < 0.02 * exact.abs().max()


def test_a_gain_that_is_not_positive_is_refused() -> None:
    with pytest.raises(regard.ConfigError, match="gain"):
        regard.build("cosine(gain=0.0)", regard.Heads(count=1, key_dim=2))
