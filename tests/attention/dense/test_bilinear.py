"""Bilinear attention, one pair at a time, with queries and keys of different widths."""

import math

import pytest
import torch

import regard


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("query_dim", [4, 3, 1])
@pytest.mark.parametrize("length", [1, 6, 17])
def test_pairs_one_at_a_time(length: int, query_dim: int, causal: bool) -> None:
    heads = regard.Heads(count=2, key_dim=3, query_dim=query_dim, value_dim=2, kv_count=1, causal=causal)
    mechanism = regard.build("bilinear", heads).double()
    q, k, v = draw(1, 2, length, query_dim), draw(1, 1, length + 1, 3, seed=1), draw(1, 1, length + 1, 2, seed=2)
    got = mechanism(q, k, v).values[0]
    for head in range(2):
        form = mechanism.weight[head].tolist()
        for i in range(length):
            seen, odds = range(i + 2 if causal else length + 1), []
            for j in seen:
                total = 0.0
                for a in range(query_dim):
                    for b in range(3):
                        total += q[0, head, i, a].item() * form[a][b] * k[0, 0, j, b].item()
                odds.append(math.exp(total))
            expected = sum(odd * v[0, 0, j] for odd, j in zip(odds, seen, strict=True)) / sum(odds)
            torch.testing.assert_close(got[head, i], expected, rtol=0, atol=1e-12)


def test_golden_values_and_which_side_is_the_query() -> None:
    mechanism = regard.build("bilinear", regard.Heads(count=1, key_dim=2)).double()
    with torch.no_grad():
        mechanism.weight.copy_(torch.tensor([[0.0, 3.0], [0.0, 0.0]]))  # q_1 k_2 alone
    q = torch.tensor([[1.0, 5.0]], dtype=torch.float64)[None, None]
    k = torch.tensor([[7.0, 0.5], [7.0, 0.0]], dtype=torch.float64)[None, None]
    v = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)[None, None]
    first = 1 / (1 + math.exp(-1.5))
    assert mechanism(q, k, v).values.flatten().tolist() == pytest.approx([first, 1 - first], abs=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_the_identity_over_sqrt_d_is_scaled_dot_product(causal: bool) -> None:
    mechanism = regard.build("bilinear", regard.Heads(count=2, key_dim=4, causal=causal)).double()
    with torch.no_grad():
        mechanism.weight.copy_(torch.eye(4) / 2)
    q, k, v = draw(2, 2, 9, 4), draw(2, 2, 9, 4, seed=1), draw(2, 2, 9, 4, seed=2)
    torch.testing.assert_close(mechanism(q, k, v).values, regard.attend(q, k, v, causal=causal), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("query_dim", "key_dim"), [(64, 64), (16, 256)])
def test_logits_start_with_variance_one(query_dim: int, key_dim: int) -> None:
    heads = regard.Heads(count=1, key_dim=key_dim, query_dim=query_dim)
    form = regard.build("bilinear", heads).weight.detach().double()
    logits = draw(1, 500, query_dim) @ form @ draw(1, 500, key_dim, seed=1).mT
    # 250,000 pairs share one matrix and 1,000 vectors: a relative deviation of about 5%
    assert logits.var().item() == pytest.approx(1.0, abs=0.2)
