"""Softmax with null keys: the oracles of its source."""

import math

import pytest
import torch

import regard
from regard.core.bias import ScoreBias
from regard.testing.counting import count


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_null_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, nulls: int, causal: bool) -> torch.Tensor:
    """A softmax over [logits, 0, ..., 0] whose last columns are dropped."""
    logits = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        logits = logits.masked_fill(j > i + k.shape[2] - q.shape[2], float("-inf"))
    wide = torch.cat([logits, logits.new_zeros(*logits.shape[:3], nulls)], -1).softmax(-1)
    return wide[..., : k.shape[2]] @ v


@pytest.mark.parametrize("nulls", [1, 3])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (7, 7), (5, 40), (40, 40)])
def test_null_keys_of_logit_and_value_zero(queries: int, keys: int, causal: bool, nulls: int) -> None:
    q, k, v = draw(2, 2, queries, 4), draw(2, 2, keys, 4, seed=1), draw(2, 2, keys, 3, seed=2)
    heads = regard.Heads(count=2, key_dim=4, value_dim=3, causal=causal)
    got = regard.build("softmax_plus_one", heads, num_null=nulls)(q, k, v).values
    torch.testing.assert_close(got, with_null_keys(q, k, v, nulls, causal), rtol=0, atol=1e-12)


def test_golden_values() -> None:
    q, v = torch.zeros(1, 1, 3, 2, dtype=torch.float64), torch.ones(1, 1, 3, 2, dtype=torch.float64)
    causal = regard.attend(q, q, v, "softmax_plus_one", causal=True)[0, 0, :, 0].tolist()
    assert causal == pytest.approx([1 / 2, 2 / 3, 3 / 4], abs=1e-12)
    assert regard.attend(q, q, v, "softmax_plus_one(num_null=3)")[0, 0, 0, 0].item() == pytest.approx(1 / 2, abs=1e-12)


@pytest.mark.parametrize("queries", [1, 4])
@pytest.mark.parametrize("route", ["plain", "curve"])
def test_very_low_logits_say_nothing_and_very_high_ones_are_a_softmax(queries: int, route: str) -> None:
    q, k, v = draw(1, 1, queries, 4).abs() + 1, draw(1, 1, 6, 4, seed=1).abs() + 1, draw(1, 1, 6, 4, seed=2)
    curve = torch.zeros(1, 16, dtype=torch.float64)
    bias = None if route == "plain" else ScoreBias(high=8, curve=curve)
    low = regard.attend(q, -1e4 * k, v, "softmax_plus_one", bias=bias)
    assert low.abs().max() == 0
    high = regard.attend(q, 1e4 * k, v, "softmax_plus_one", bias=bias)
    torch.testing.assert_close(high, regard.attend(q, 1e4 * k, v), rtol=0, atol=1e-12)


@pytest.mark.parametrize("route", ["plain", "table", "curve", "one query"])
def test_rows_sum_to_less_than_one_and_empty_rows_are_zero(route: str) -> None:
    queries = 1 if route == "one query" else 5
    q, k = draw(2, 1, queries, 4), draw(2, 1, 5, 4, seed=1)
    keep = torch.tensor([[True, False, True, True, False], [False] * 5])
    table = ScoreBias(table=draw(1, 1, queries, 5, seed=3))
    bias = {"table": table, "curve": ScoreBias(high=4, curve=draw(1, 9, seed=4))}.get(route)
    mechanism = regard.build("softmax_plus_one", regard.Heads(count=1, key_dim=4))
    weights = regard.weights(mechanism, q, k, key_mask=keep, bias=bias)
    assert bool((weights[0, ..., keep[0]] > 0).all())
    assert bool((weights[0].sum(-1) < 1).all())
    assert not weights[0, ..., ~keep[0]].any()
    assert not weights[1].any()


@pytest.mark.parametrize("biased", [False, True])
def test_no_tensor_of_queries_times_keys(biased: bool) -> None:
    length = 700
    leaves = [draw(1, 1, length, 8, seed=s).float().requires_grad_() for s in range(3)]
    bias = ScoreBias(high=length - 1, curve=torch.zeros(1, length)) if biased else None
    found = count(lambda: regard.attend(*leaves, "softmax_plus_one", causal=True, bias=bias).sum().backward())
    assert found.largest <= length * length // 2


def test_null_keys_are_no_slots() -> None:
    mechanism = regard.build("softmax_plus_one", regard.Heads(count=1, key_dim=4, causal=True), num_null=2)
    q, k, v = (draw(1, 1, 8, 4, seed=s) for s in range(3))
    with torch.no_grad():
        first = mechanism(q[:, :, :5], k[:, :, :5], v[:, :, :5], state=mechanism.initial_state(1, dtype=q.dtype))
        last = mechanism(q[:, :, 5:], k[:, :, 5:], v[:, :, 5:], state=first.state)
        torch.testing.assert_close(last.values, mechanism(q, k, v).values[:, :, 5:], rtol=0, atol=1e-12)
    assert last.state.length == 8
    assert last.state.nbytes == mechanism.state_nbytes(1, 8, torch.float64) == 8 * 8 * 8


def test_no_null_key_is_refused() -> None:
    with pytest.raises(regard.ConfigError, match="num_null"):
        regard.build("softmax_plus_one(num_null=0)", regard.Heads(count=1, key_dim=2))
