"""The graph attention score, one pair at a time, and what it cannot do."""

import math

import pytest
import torch

import regard


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("slope", [0.2, 0.6])
@pytest.mark.parametrize("length", [1, 6, 17])
def test_pairs_one_at_a_time(length: int, slope: float, causal: bool) -> None:
    heads = regard.Heads(count=2, key_dim=3, value_dim=2, kv_count=1, causal=causal)
    mechanism = regard.build("graph", heads, slope=slope).double()
    q, k, v = draw(1, 2, length, 3), draw(1, 1, length + 1, 3, seed=1), draw(1, 1, length + 1, 2, seed=2)
    got = mechanism(q, k, v).values[0]
    for head in range(2):
        a = torch.cat([mechanism.query[head], mechanism.key[0]]).tolist()
        for i in range(length):
            seen = range(i + 2 if causal else length + 1)
            odds = []
            for j in seen:
                pair = q[0, head, i].tolist() + k[0, 0, j].tolist()
                total = sum(x * y for x, y in zip(a, pair, strict=True))
                odds.append(math.exp(total if total > 0 else slope * total))
            expected = sum(odd * v[0, 0, j] for odd, j in zip(odds, seen, strict=True)) / sum(odds)
            torch.testing.assert_close(got[head, i], expected, rtol=0, atol=1e-12)


def test_golden_values() -> None:
    mechanism = regard.build("graph", regard.Heads(count=1, key_dim=1)).double()
    with torch.no_grad():
        mechanism.query.fill_(1.0)
        mechanism.key.fill_(2.0)
    q = torch.tensor([[0.5]], dtype=torch.float64)[None, None]
    k = torch.tensor([[-1.0], [0.25]], dtype=torch.float64)[None, None]
    v = torch.tensor([[0.0], [1.0]], dtype=torch.float64)[None, None]
    # sums -1.5 and 1: logits -0.3 and 1 with the paper's slope of 0.2
    assert mechanism(q, k, v).values.item() == pytest.approx(1 / (1 + math.exp(-1.3)), abs=1e-12)


def rankings(name: str, seed: int) -> set[tuple[int, ...]]:
    """The orders in which the queries of one head rank the keys."""
    mechanism = regard.build(name, regard.Heads(count=1, key_dim=4, seed=seed)).double()
    q, k = 3 * draw(1, 1, 12, 4, seed=seed), 3 * draw(1, 1, 9, 4, seed=seed + 50)
    rows = regard.weights(mechanism, q, k)[0, 0]
    return {tuple(row.argsort().tolist()) for row in rows}


@pytest.mark.parametrize("seed", range(5))
def test_every_query_ranks_the_keys_alike(seed: int) -> None:
    """Static attention, Brody et al. 2022; the scores that rank per query show that the measurement can tell."""
    assert len(rankings("graph", seed)) == 1
    assert len(rankings("additive", seed)) > 1
    assert len(rankings("bilinear", seed)) > 1


def test_without_the_kink_the_queries_do_not_matter() -> None:
    q, k = draw(1, 2, 6, 4), draw(1, 2, 7, 4, seed=1)
    for slope, spread in ((1.0, 0.0), (0.2, 1e-2)):
        rows = regard.weights(regard.build("graph", regard.Heads(count=2, key_dim=4), slope=slope).double(), q, k)
        found = (rows - rows[:, :, :1]).abs().max().item()
        assert found < 1e-12 if spread == 0 else found > spread


@pytest.mark.parametrize("slope", [-0.1, 1.5])
def test_a_score_that_is_not_monotone_is_refused(slope: float) -> None:
    with pytest.raises(regard.ConfigError, match="slope"):
        regard.build("graph", regard.Heads(count=1, key_dim=2), slope=slope)
