"""One query, as decoding asks: grouped keys and values give what repeated ones do, pair by pair."""

import math

import torch

from regard.engines.dense import average_once, logits_once


def randn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_logits_of_one_query_with_grouped_keys():
    q, k = randn(2, 6, 1, 5, seed=0), randn(2, 3, 4, 5, seed=1)
    got = logits_once(q, k)
    assert got.shape == (2, 6, 1, 4)
    for batch in range(2):
        for head in range(6):
            for key in range(4):
                wanted = sum(float(q[batch, head, 0, c]) * float(k[batch, head // 2, key, c]) for c in range(5))
                assert abs(float(got[batch, head, 0, key]) - wanted) < 1e-12


def test_averages_of_one_query_with_grouped_values():
    logits, v = randn(2, 6, 1, 4, seed=2), randn(2, 3, 4, 7, seed=3)
    mask = torch.tensor([[True, True, False, True], [True, False, True, True]])
    got = average_once(logits, v, mask, nulls=0.5)
    assert got.shape == (2, 6, 1, 7)
    for batch in range(2):
        for head in range(6):
            kept = [key for key in range(4) if mask[batch, key]]
            weights = {key: math.exp(float(logits[batch, head, 0, key])) for key in kept}
            total = 0.5 + sum(weights.values())
            for c in range(7):
                wanted = sum(weights[key] * float(v[batch, head // 2, key, c]) for key in kept) / total
                assert abs(float(got[batch, head, 0, c]) - wanted) < 1e-12
