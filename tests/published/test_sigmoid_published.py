"""Sigmoid attention as published: its formula, golden values, and how far the length of the call moves outputs."""

import math

import pytest
import torch

import regard
from regard_lab.published.sigmoid_published import SigmoidPublished

SPEC = "regard_lab.published.sigmoid_published:SigmoidPublished"


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (6, 8), (17, 17)])
def test_it_is_its_formula(queries: int, keys: int, causal: bool) -> None:
    """sum_j sigmoid(q_i . k_j / sqrt(d) - log n) v_j, n the real keys of the call."""
    q, k, v = draw(1, 2, queries, 3), draw(1, 2, keys, 3, seed=1), draw(1, 2, keys, 2, seed=2)
    mechanism = SigmoidPublished(regard.Heads(count=2, key_dim=3, value_dim=2, causal=causal))
    for mask in (None, torch.arange(keys) % 4 != 2):
        real = torch.ones(keys).bool() if mask is None else mask
        pairs = real.expand(queries, keys).tril(keys - queries if causal else keys)
        weights = torch.sigmoid(q @ k.mT / math.sqrt(3) - math.log(int(real.sum()))) * pairs
        got = mechanism(q, k, v, key_mask=None if mask is None else mask[None]).values
        torch.testing.assert_close(got, weights @ v, rtol=0, atol=1e-12)


def test_golden_values() -> None:
    q, v = torch.zeros(1, 1, 4, 2, dtype=torch.float64), torch.ones(1, 1, 4, 2, dtype=torch.float64)
    rows = regard.attend(q, q, v, SPEC, causal=True)[0, 0, :, 0].tolist()
    assert rows == pytest.approx([1 / 5, 2 / 5, 3 / 5, 4 / 5], abs=1e-12)


def test_it_depends_on_how_long_the_sequence_is_and_says_so() -> None:
    q, k, v = (draw(1, 1, 12, 4, seed=s) for s in range(3))
    early = [x[:, :, :6] for x in (q, k, v)]
    whole = regard.attend(q, k, v, SPEC, causal=True)
    assert (regard.attend(*early, SPEC, causal=True) - whole[:, :, :6]).abs().max() > 0.05
    assert regard.describe(SPEC).leaks
    both = (regard.attend(q, k, v, spec) for spec in ("sigmoid", SPEC))
    torch.testing.assert_close(*both, rtol=0, atol=1e-12)  # every query sees every key: nothing to leak
    with pytest.raises(regard.UnsupportedError, match="whole sequence"):
        regard.build(SPEC, regard.Heads(count=1, key_dim=4, causal=True)).initial_state(1)
