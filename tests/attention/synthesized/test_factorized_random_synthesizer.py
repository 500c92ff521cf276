"""The factorized Random Synthesizer against loops over its two factors."""

import math

import pytest
import torch

import regard


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(*, causal: bool = True, count: int = 2, kv_count: int | None = None, **options: object) -> regard.Attention:
    heads = regard.Heads(count=count, key_dim=4, value_dim=3, kv_count=kv_count, causal=causal, max_length=40)
    return regard.build("factorized_random_synthesizer", heads, **options).double()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 13, 40])
def test_rows_one_at_a_time(length: int, causal: bool) -> None:
    mechanism = build(causal=causal, rank=3)
    q, v = draw(2, 2, length, 4), draw(2, 2, length, 3, seed=2)
    keep = torch.stack([torch.arange(length) % 4 != 2, torch.ones(length, dtype=torch.bool)])
    got = mechanism(q, q, v, key_mask=keep).values
    one, two = mechanism.first.tolist(), mechanism.second.tolist()
    for row in range(2):
        for head in range(2):
            for i in range(length):
                seen = [j for j in range(i + 1 if causal else length) if keep[row, j]]
                odds = [math.exp(sum(one[head][i][r] * two[head][j][r] for r in range(3))) for j in seen]
                expected = sum(odd / sum(odds) * v[row, head, j] for odd, j in zip(odds, seen, strict=True))
                torch.testing.assert_close(got[row, head, i], expected, rtol=0, atol=1e-12)


def test_golden_values() -> None:
    heads = regard.Heads(count=1, key_dim=1, max_length=3)
    mechanism = regard.build("factorized_random_synthesizer", heads, rank=1).double()
    with torch.no_grad():
        for factor, numbers in ((mechanism.first, [0.0, 1.0, 2.0]), (mechanism.second, [0.0, math.log(3), 7.0])):
            factor.copy_(torch.tensor(numbers, dtype=torch.float64)[None, :, None])
    v = torch.tensor([0.0, 20.0], dtype=torch.float64)[None, None, :, None]
    # two slots of three: odds 1, 1 | 1, 3
    assert mechanism(v, v, v).values.flatten().tolist() == pytest.approx([10.0, 15.0], abs=1e-12)


def test_the_logits_have_the_rank_that_was_asked_for() -> None:
    """log p_ij + log sum_r exp(B_ir) = B_ij, so rows of log p less their first number have at most the rank of B."""
    mechanism = build(causal=False)
    assert mechanism.rank == 8
    q = draw(1, 2, 40, 4)
    logits = regard.weights(mechanism, q, q).log()
    singular = torch.linalg.svdvals(logits - logits[..., :1])
    assert (singular[..., 7] > 1e-3).all()
    assert (singular[..., 8] < 1e-10).all()


def test_the_logits_start_with_variance_one() -> None:
    heads = regard.Heads(count=2, key_dim=1, max_length=300)
    mechanism = regard.build("factorized_random_synthesizer", heads)
    assert (mechanism.first @ mechanism.second.mT).var().item() == pytest.approx(1, abs=0.2)


def test_limits() -> None:
    long = draw(1, 2, 41, 4)
    for limited in (build(), build(impl="reference")):
        with pytest.raises(regard.LimitError, match="max_length=40"):
            limited(long, long, long[..., :3])
    with pytest.raises(regard.ConfigError, match="rank=0"):
        build(rank=0)
    with pytest.raises(regard.ConfigError, match="max_length"):
        regard.build("factorized_random_synthesizer", regard.Heads(count=1, key_dim=2))
