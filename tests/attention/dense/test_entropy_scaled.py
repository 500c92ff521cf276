"""Entropy-invariant softmax: its formula, its source's entropies, its fixed point."""

import math

import pytest
import torch

import regard
from regard.core.bias import ScoreBias
from regard.testing.counting import count


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("options", [{}, {"base_length": 4}, {"least_keys": 16}])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (6, 8), (17, 17), (40, 40)])
def test_rows_one_at_a_time(queries: int, keys: int, options: dict[str, int], causal: bool, biased: bool) -> None:
    q, k, v = draw(1, 2, queries, 4), draw(1, 2, keys, 4, seed=1), draw(1, 2, keys, 3, seed=2)
    keep = [j % 4 != 2 for j in range(keys)]
    table = draw(1, 2, queries, keys, seed=3) if biased else torch.zeros(1, 2, queries, keys).double()
    mechanism = regard.build("entropy_scaled", regard.Heads(count=2, key_dim=4, value_dim=3, causal=causal), **options)
    bias = ScoreBias(table=table) if biased else None
    for mask in (None, keep):
        got = mechanism(q, k, v, key_mask=None if mask is None else torch.tensor([mask]), bias=bias).values[0]
        for head in range(2):
            for i in range(queries):
                last = i + keys - queries if causal else keys - 1
                seen = [j for j in range(last + 1) if mask is None or mask[j]]
                length = max(len(seen), options.get("least_keys", 1))
                ratio = math.log(length) / math.log(options.get("base_length", 512))
                # the bias is added before the multiplication
                logits = [(q[0, head, i] @ k[0, head, j]).item() / 2 + table[0, head, i, j].item() for j in seen]
                odds = [math.exp(ratio * logit) for logit in logits]
                expected = sum(odd * v[0, head, j] for odd, j in zip(odds, seen, strict=True)) / sum(odds)
                torch.testing.assert_close(got[head, i], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("biased", [False, True])
def test_at_the_base_length_it_is_softmax(biased: bool) -> None:
    q, k, v = (draw(2, 2, 24, 4, seed=s) for s in range(3))
    bias = ScoreBias(high=23, curve=draw(2, 47, seed=3)) if biased else None
    keep = torch.arange(24).expand(2, -1) % 2 == 0
    for mask, base in ((None, 24), (keep, 12)):
        mechanism = regard.build("entropy_scaled", regard.Heads(count=2, key_dim=4), base_length=base)
        got = mechanism(q, k, v, key_mask=mask, bias=bias).values
        torch.testing.assert_close(got, regard.attend(q, k, v, key_mask=mask, bias=bias), rtol=0, atol=1e-12)


def test_causal_rows_are_softmax_with_a_temperature_of_their_own() -> None:
    q, k, v = (draw(1, 1, 10, 4, seed=s) for s in range(3))
    got = regard.attend(q, k, v, "entropy_scaled", causal=True)
    for i in range(10):
        scale = math.log(i + 1) / math.log(512) / 2
        expected = torch.softmax(scale * (k[:, :, : i + 1] @ q[0, 0, i]), -1) @ v[0, 0, : i + 1]
        torch.testing.assert_close(got[0, 0, i], expected[0, 0], rtol=0, atol=1e-12)


def entropy(spec: str, keys: int, rows: int, deviation: float) -> float:
    """Mean entropy of rows whose logits are normal with this deviation: query i reads component i of every key."""
    mechanism = regard.build(spec, regard.Heads(count=1, key_dim=rows, value_dim=min(keys, 1024)))
    q = deviation * rows**0.5 * torch.eye(rows, dtype=torch.float64)[None, None]
    p = regard.weights(mechanism, q, draw(1, 1, keys, rows))
    return -torch.special.xlogy(p, p).sum(-1).mean().item()


@pytest.mark.parametrize(
    ("deviation", "keys", "rows", "plain", "scaled"),
    [
        (2.0, 64, 600, 2.64, 3.36),
        (2.0, 512, 200, 4.36, 4.36),
        (2.0, 4096, 100, 6.36, 5.08),
        (1.0, 64, 100, 3.65, 3.93),
        (1.0, 512, 20, 5.73, 5.73),
        (1.0, 4096, 20, 7.82, 7.43),
    ],
)
def test_the_entropies_of_the_specification(
    deviation: float, keys: int, rows: int, plain: float, scaled: float
) -> None:
    """Growth with the number of keys is reduced, not removed. Both sides are means over rows, whose entropies have
    standard deviations of up to 0.6 (4,096 keys, scaled); the plain and the scaled figure differ by 0.28 or more.
    """
    assert entropy("softmax", keys, rows, deviation) == pytest.approx(plain, abs=0.08)
    assert entropy("entropy_scaled", keys, rows, deviation) == pytest.approx(scaled, abs=0.08)


def test_one_key_and_no_key() -> None:
    q, k, v = (draw(2, 1, 5, 4, seed=s).requires_grad_() for s in range(3))
    keep = torch.tensor([[False, True, False, False, False], [False] * 5])
    for bias in (None, ScoreBias(table=torch.zeros(1, 1, 5, 5, dtype=torch.float64))):
        values = regard.attend(q, k, v, "entropy_scaled", key_mask=keep, bias=bias)
        torch.testing.assert_close(values[0, 0], v[0, 0, 1].expand(5, -1), rtol=0, atol=1e-12)
        assert not values[1].any()
        grads = torch.autograd.grad(values.square().sum(), (q, k, v))
        assert all(bool(grad.isfinite().all()) for grad in grads)


def test_without_a_bias_the_weights_are_never_made() -> None:
    x = [draw(1, 1, 700, 8, seed=s).float() for s in range(3)]
    assert count(lambda: regard.attend(*x, "entropy_scaled", causal=True)).largest < 700 * 700 // 4


@pytest.mark.parametrize(("option", "least"), [("base_length=1", 2), ("least_keys=0", 1)])
def test_bad_options_are_refused(option: str, least: int) -> None:
    with pytest.raises(regard.ConfigError, match=f"{option} is not valid: .* greater than or equal to {least}"):
        regard.build(f"entropy_scaled({option})", regard.Heads(count=1, key_dim=2))
