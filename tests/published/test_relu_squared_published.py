"""Squared ReLU over the length of the call: its formula, golden values, and how far the length moves outputs."""

import math

import pytest
import torch

import regard
from regard.core.bias import ScoreBias
from regard_lab.published.relu_squared_published import ReluSquaredPublished

SPEC = "regard_lab.published.relu_squared_published:ReluSquaredPublished"


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def activation(name: str, x: float) -> float:
    if name == "relu_squared":
        return max(x, 0.0) ** 2
    mean, deviation = math.sqrt(1 / 2), math.sqrt(1 / (4 * math.pi))
    return 0.5 * (1 + math.erf((x - mean) / (deviation * math.sqrt(2))))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["relu_squared", "laplace"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (6, 8), (13, 13)])
def test_it_is_its_formula(queries: int, keys: int, name: str, causal: bool, biased: bool) -> None:
    """sum_j f(q_i . k_j / n + b_ij) v_j, n the real keys of the call."""
    q, k, v = draw(1, 2, queries, 4), draw(1, 2, keys, 4, seed=1), draw(1, 2, keys, 3, seed=2)
    table = draw(1, 2, queries, keys, seed=3) * biased
    mechanism = ReluSquaredPublished(regard.Heads(count=2, key_dim=4, value_dim=3, causal=causal), activation=name)
    for mask in (None, torch.arange(keys) % 4 != 2):
        real = torch.ones(keys).bool() if mask is None else mask
        pairs = real.expand(queries, keys).tril(keys - queries if causal else keys)
        x = q @ k.mT / real.sum() + table
        weights = x.apply_(lambda logit: activation(name, logit)) * pairs
        bias, key_mask = ScoreBias(table=table) if biased else None, None if mask is None else mask[None]
        got = mechanism(q, k, v, key_mask=key_mask, bias=bias).values
        torch.testing.assert_close(got, weights @ v, rtol=0, atol=1e-12)


def test_golden_values() -> None:
    q, v = torch.ones(1, 1, 3, 4, dtype=torch.float64), torch.ones(1, 1, 3, 4, dtype=torch.float64)
    rows = regard.attend(q, q, v, SPEC, causal=True)[0, 0, :, 0].tolist()
    assert rows == pytest.approx([(4 / 3) ** 2 * count for count in (1, 2, 3)], abs=1e-12)
    zero = torch.zeros(1, 1, 5, 4)
    assert not regard.attend(zero, zero, draw(1, 1, 5, 4).float(), SPEC).any()


def test_it_depends_on_how_long_the_sequence_is_and_says_so() -> None:
    q, k, v = (draw(1, 1, 12, 4, seed=s) for s in range(3))
    whole = regard.attend(q, k, v, SPEC, causal=True)
    early = regard.attend(*(x[:, :, :6] for x in (q, k, v)), SPEC, causal=True)
    assert (early - whole[:, :, :6]).abs().max() > 0.1
    torch.testing.assert_close(early, 4 * whole[:, :, :6], rtol=0, atol=1e-12)  # (12/6)^2
    assert regard.describe(SPEC).leaks
    with pytest.raises(regard.UnsupportedError, match="whole sequence"):
        regard.build(SPEC, regard.Heads(count=1, key_dim=4, causal=True)).initial_state(1)
