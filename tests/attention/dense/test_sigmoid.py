"""Sigmoid attention: each weight by itself, and a normaliser that counts visible keys."""

import math

import pytest
import torch

import regard
from regard.core.bias import ScoreBias


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, keep: list[bool]) -> torch.Tensor:
    """sum_j sigmoid(q_i . k_j / sqrt(d) - log n_i) v_j of one head."""
    queries, keys, width = q.shape[0], k.shape[0], q.shape[1]
    rows = []
    for i in range(queries):
        seen = [j for j in range(keys) if keep[j] and (not causal or j <= i + keys - queries)]
        row = torch.zeros(v.shape[1], dtype=v.dtype)
        for j in seen:
            logit = sum(q[i, c].item() * k[j, c].item() for c in range(width)) / math.sqrt(width) - math.log(len(seen))
            row = row + v[j] / (1 + math.exp(-logit))
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (6, 8), (17, 17)])
def test_pairs_one_at_a_time(queries: int, keys: int, causal: bool) -> None:
    q, k, v = draw(1, 2, queries, 3), draw(1, 2, keys, 3, seed=1), draw(1, 2, keys, 2, seed=2)
    keep = [j % 4 != 2 for j in range(keys)]
    mechanism = regard.build("sigmoid", regard.Heads(count=2, key_dim=3, value_dim=2, causal=causal))
    for mask in (None, keep):
        got = mechanism(q, k, v, key_mask=None if mask is None else torch.tensor([mask])).values
        for head in range(2):
            expected = by_hand(q[0, head], k[0, head], v[0, head], causal, mask or [True] * keys)
            torch.testing.assert_close(got[0, head], expected, rtol=0, atol=1e-12)


def test_golden_values() -> None:
    q, v = torch.zeros(1, 1, 4, 2, dtype=torch.float64), torch.ones(1, 1, 4, 2, dtype=torch.float64)
    rows = regard.attend(q, q, v, "sigmoid", causal=True)[0, 0, :, 0].tolist()
    assert rows == pytest.approx([1 / 2, 2 / 3, 3 / 4, 4 / 5], abs=1e-12)  # n / (1 + n)
    shifted = regard.attend(q, q, v, f"sigmoid(offset={math.log(4)})")[0, 0, 0, 0].item()
    assert shifted == pytest.approx(4 / 2, abs=1e-12)  # sigmoid(0) for each of 4 keys


@pytest.mark.parametrize("causal", [True, False])
def test_deleting_a_key_leaves_the_other_weights(causal: bool) -> None:
    q, k = draw(1, 1, 9, 4), draw(1, 1, 9, 4, seed=1)
    keep = torch.ones(1, 9, dtype=torch.bool)
    keep[0, 3] = False
    every = regard.weights(regard.build("sigmoid", regard.Heads(count=1, key_dim=4, causal=causal)), q, k)[0, 0]
    fewer = regard.weights(
        regard.build("sigmoid", regard.Heads(count=1, key_dim=4, causal=causal)), q, k, key_mask=keep
    )[0, 0]
    for i in range(9):
        seen = i + 1 if causal else 9
        hidden = 1 if seen > 3 else 0
        for j in range(seen):
            if j == 3:
                assert fewer[i, j] == 0
                continue
            # the odds divide by the number of visible keys, and know nothing else of the other keys
            one, other = (x[i, j] / (1 - x[i, j]) for x in (every, fewer))
            assert (one * seen).item() == pytest.approx((other * (seen - hidden)).item(), rel=1e-12)


def test_an_infinite_bias_does_not_count() -> None:
    q, k, v = (draw(1, 1, 6, 4, seed=s) for s in range(3))
    keep = torch.tensor([[True, True, False, True, False, True]])
    mechanism = regard.build("sigmoid", regard.Heads(count=1, key_dim=4, causal=True))
    masked = mechanism(q, k, v, key_mask=keep).values
    biased = mechanism(q, k, v, bias=ScoreBias(table=keep[:, None, None].expand(1, 1, 6, 6))).values
    torch.testing.assert_close(biased, masked, rtol=0, atol=1e-12)


def test_a_learned_offset_starts_where_it_is_told_and_is_one_per_head() -> None:
    heads = regard.Heads(count=2, key_dim=4)
    q, k, v = (draw(1, 2, 5, 4, seed=s) for s in range(3))
    learned = regard.build("sigmoid(offset=-0.5, learned=True)", heads).double()
    assert learned.shift.tolist() == [-0.5, -0.5]
    torch.testing.assert_close(
        learned(q, k, v).values, regard.attend(q, k, v, "sigmoid(offset=-0.5)"), rtol=0, atol=1e-12
    )
    with torch.no_grad():
        learned.shift[1] = 2.0
    torch.testing.assert_close(
        learned(q, k, v).values[:, 1], regard.attend(q, k, v, "sigmoid(offset=2.0)")[:, 1], rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("spec", ["sigmoid(scale=0.0)", "sigmoid(learned=1)"])
def test_bad_options_are_refused(spec: str) -> None:
    with pytest.raises(regard.ConfigError, match="sigmoid"):
        regard.build(spec, regard.Heads(count=1, key_dim=2))
