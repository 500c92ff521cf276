"""Additive attention against the concatenate-then-network form, one pair at a time."""

import math

import pytest
import torch

import regard
from regard.testing.counting import count


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 6, 17])
def test_pairs_one_at_a_time(length: int, causal: bool) -> None:
    heads = regard.Heads(count=2, key_dim=3, query_dim=4, value_dim=2, kv_count=1, causal=causal)
    mechanism = regard.build("additive", heads, hidden=5).double()
    q, k, v = draw(1, 2, length, 4), draw(1, 1, length + 1, 3, seed=1), draw(1, 1, length + 1, 2, seed=2)
    got = mechanism(q, k, v).values[0]
    w_q, w_k, w_v = (x.detach() for x in (mechanism.query, mechanism.key, mechanism.combine))
    for head in range(2):
        network = torch.cat([w_q[head], w_k[0]], 1)
        for i in range(length):
            seen = range(i + 2 if causal else length + 1)
            odds = [
                float(torch.exp(w_v[head] @ torch.tanh(network @ torch.cat([q[0, head, i], k[0, 0, j]])))) for j in seen
            ]
            expected = sum(odd * v[0, 0, j] for odd, j in zip(odds, seen, strict=True)) / sum(odds)
            torch.testing.assert_close(got[head, i], expected, rtol=0, atol=1e-12)


def test_golden_values() -> None:
    mechanism = regard.build("additive", regard.Heads(count=1, key_dim=1), hidden=1).double()
    with torch.no_grad():
        mechanism.query.fill_(1.0)
        mechanism.key.fill_(1.0)
        mechanism.combine.fill_(2.0)
    q = torch.tensor([[0.5]], dtype=torch.float64)[None, None]
    k = torch.tensor([[-0.5], [0.0]], dtype=torch.float64)[None, None]
    v = torch.tensor([[0.0], [1.0]], dtype=torch.float64)[None, None]
    weight = math.exp(2 * math.tanh(0.5)) / (1 + math.exp(2 * math.tanh(0.5)))
    assert mechanism(q, k, v).values.item() == pytest.approx(weight, abs=1e-12)


def test_there_is_no_scale_and_the_network_saturates() -> None:
    mechanism = regard.build("additive", regard.Heads(count=1, key_dim=4)).double()
    q, k, v = draw(1, 1, 3, 4), draw(1, 1, 5, 4, seed=1), draw(1, 1, 5, 4, seed=2)
    far = mechanism(1e6 * q, k, v).values  # tanh is +-1 whatever the key: every weight is the same
    torch.testing.assert_close(far, v.mean(2, keepdim=True).expand_as(far), rtol=0, atol=1e-12)


@pytest.mark.parametrize("backward", [False, True])
def test_no_tensor_of_pairs_times_hidden(backward: bool) -> None:
    length = 512
    mechanism = regard.build("additive", regard.Heads(count=1, key_dim=16, causal=True), hidden=32)
    leaves = [draw(1, 1, length, 16, seed=s).float().requires_grad_(backward) for s in range(3)]

    def run() -> None:
        with torch.set_grad_enabled(backward):
            values = mechanism(*leaves).values
        if backward:
            values.sum().backward()

    assert count(run).largest <= length * length  # the pairs alone; pairs times hidden would be 32 times that
