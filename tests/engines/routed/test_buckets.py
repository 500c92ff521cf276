"""The bucket engine under every rule, against loops over the pairs that match."""

import itertools

import pytest
import torch
from torch import Tensor

from regard.engines.routed import buckets
from regard.engines.routed.buckets import Bucketing, Rule, bucketed, tile_size


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def codes(*shape: int, seed: int, choices: int = 5) -> Tensor:
    return torch.randint(choices, shape, generator=torch.Generator().manual_seed(seed))


def dense(
    q: Tensor, k: Tensor, v: Tensor, ours: Tensor, theirs: Tensor, asking: Tensor, keep: Tensor, rule: Rule
) -> tuple[Tensor, Tensor]:
    """Values, and log-sum-exps in base 2, by every pair of every round."""
    group, past = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2] if rule.causal else 0
    k, v, theirs = (x.repeat_interleave(group, 1) for x in (k, v, theirs))
    times = (ours[:, :, :, None] == theirs[:, :, None]).sum(-1)
    i, j = torch.arange(q.shape[2])[:, None] + past, torch.arange(k.shape[2])
    seen = asking[:, None, :, None] & keep[:, None, None] & (j <= i if rule.causal else (i >= 0) & (j >= 0))
    times = times * (seen if rule.itself else seen & (i != j))
    times = times if rule.duplicates else times.clamp(max=1)
    odds = times * torch.exp(0.7 * q @ k.mT)
    total = odds.sum(-1, keepdim=True)
    return odds @ v / torch.where(total == 0, 1, total), total[..., 0].log2()


@pytest.mark.parametrize(
    ("causal", "itself", "duplicates"),
    list(itertools.product([True, False], [True, False], [True, False])),
)
def test_every_rule(causal: bool, itself: bool, duplicates: bool) -> None:
    rule = Rule(causal, itself, duplicates, 5, 16)
    for queries, keys in ((40, 40), (7, 40), (1, 12), (1, 1), *(() if causal else ((9, 4),))):
        q, k, v = (
            x.requires_grad_()
            for x in (randn(2, 4, queries, 3), randn(2, 2, keys, 3, seed=1), randn(2, 2, keys, 2, seed=2))
        )
        ours, theirs = codes(2, 4, queries, 2, seed=3), codes(2, 2, keys, 2, seed=4)
        asking, keep = randn(2, queries, seed=5) > -1, randn(2, keys, seed=6) > -1
        wanted = dense(q, k, v, ours, theirs, asking, keep, rule)
        values, lse = bucketed(Bucketing(q, k, v, ours, theirs, asking, keep, 0.7, *rule))
        torch.testing.assert_close(values, wanted[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(lse, wanted[1], rtol=0, atol=1e-12)
        way = randn(*values.shape, seed=7)
        got, right = (torch.autograd.grad((x * way).sum(), (q, k, v)) for x in (values, wanted[0]))
        for one, other in zip(got, right, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_tiles_are_about_as_long_as_a_run() -> None:
    assert [tile_size(crowd) for crowd in (0, 24, 25, 48, 49, 1000)] == [16, 16, 32, 32, 64, 64]


def test_heads_that_share_keys_fill_tiles_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile ends with a run of equal codes, not with the share of a head: 4 x 64 queries of one code are 4 tiles."""
    cut, counts = buckets._tiles, []

    def counted(rank: Tensor, span: int, size: int) -> buckets.Tiles:
        found = cut(rank, span, size)
        counts.append(len(found.first))
        return found

    monkeypatch.setattr(buckets, "_tiles", counted)
    q, k, same = randn(1, 4, 64, 4), randn(1, 1, 64, 4, seed=1), torch.zeros(1, 4, 64, 1, dtype=torch.long)
    bucketed(Bucketing(q, k, k, same, same[:, :1], None, None, 0.5, *Rule(True, True, False, 5, 1000)))
    assert counts == [4, 1]
