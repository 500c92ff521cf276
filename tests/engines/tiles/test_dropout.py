"""Which weights are dropped: by integer arithmetic that is written out here, evenly, and alike in both passes."""

import copy
import math

import pytest
import torch
from torch import Tensor

from regard.core.bias import ScoreBias
from regard.engines.tiles import Dropout, gathered_attention, masked_attention, tiled_attention
from regard.patterns import causal, window
from regard.testing.counting import count

MASK64, MASK32 = 2**64 - 1, 2**32 - 1


def mixed(x: int) -> int:
    """splitmix64 in unsigned integers."""
    x &= MASK64
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK64
    return x ^ x >> 31


def number(seed: int, row: int, head: int, i: int, j: int) -> int:
    """The number of a pair, 0 to 2^32 - 1, in unsigned integers."""
    golden = 0x9E3779B97F4A7C15
    query = mixed(mixed(mixed(seed + golden * (row + 1)) + golden * (head + 1)) + golden * i)
    key = (j ^ seed) & MASK32
    key = ((key ^ key >> 16) * 0x85EBCA6B) & MASK32
    key = ((key ^ key >> 13) * 0xC2B2AE35) & MASK32
    key = (key ^ key >> 16) ^ 1 << 31
    x = ((query >> 32 ^ key) * 0x7FEB352D) & MASK32
    odd = (query & MASK32 ^ 1 << 31) | 1
    return ((x ^ x >> 16) * odd & MASK32) ^ 1 << 31


@pytest.mark.parametrize("seed", [0, 5, 2**62 - 1])
def test_the_arithmetic_is_that_of_unsigned_integers(seed: int) -> None:
    i, j = torch.tensor([0, 3, 70, 10**6]), torch.tensor([[0, 1, 69, 2**31 + 5], [7, 2, 9, 1]])
    for probability in (0.1, 0.5, 0.97):
        found = Dropout(torch.tensor(seed), probability).factors(i[None], j, like=torch.zeros(2, 3, 4, 1).double())
        for row in range(2):
            for head in range(3):
                for a, query in enumerate(i.tolist()):
                    for b, key in enumerate(j[row].tolist()):
                        kept = number(seed, row, head, query, key) >= round(probability * 2**32)
                        assert found[row, head, a, b].item() == (1 / (1 - probability) if kept else 0)


def drops(seed: int, probability: float, n: int = 600) -> Tensor:
    """1 - p where a weight is dropped and -p elsewhere, for 3 rows of 4 heads."""
    at = torch.arange(n)[None]
    factors = Dropout(torch.tensor(seed), probability).factors(at, at, like=torch.zeros(3, 4, n, 1))
    return (factors == 0).double() - probability


@pytest.mark.parametrize("probability", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_the_dropped_fraction(probability: float) -> None:
    x = drops(1, probability)
    deviation = math.sqrt(probability * (1 - probability))
    assert abs(x.mean()) < 5 * deviation / math.sqrt(x.numel())
    for axes in ((3,), (2,), (2, 3), (0, 1, 3)):  # of every query, key, head and so on, no more uneven than by chance
        numbers = x.numel() / x.sum(axes).numel()
        spread = x.sum(axes).std() / (deviation * math.sqrt(numbers))
        assert abs(spread - 1) < 5 / math.sqrt(2 * x.sum(axes).numel())


def test_drops_of_different_pairs_do_not_go_together() -> None:
    x = drops(1, 0.3)
    pairs = [(x, drops(seed, 0.3)) for seed in (0, 2, 2**40 + 1)] + [(x[1:], x[:-1]), (x[:, 1:], x[:, :-1])]
    for step in (1, 2, 8, 64, 128):
        pairs += [
            (x[..., step:, :], x[..., :-step, :]),
            (x[..., step:], x[..., :-step]),
            (x[..., step:, step:], x[..., :-step, :-step]),
            (x[..., step:, :-step], x[..., :-step, step:]),
        ]
        beside = x[..., step:] * x[..., :-step]
        pairs.append((beside[..., step:, :], beside[..., :-step, :]))
    for one, other in pairs:
        product = one * other
        assert abs(product.mean()) < 5 * product.std() / math.sqrt(product.numel())
    upper = torch.triu(torch.ones(600, 600), 1).bool()
    product = (x * x.mT)[..., upper]
    assert abs(product.mean()) < 5 * product.std() / math.sqrt(product.numel())


def test_a_table_as_bias_and_a_single_query() -> None:
    """Explicit paths: a bias that is a table, and the few keys that one query gathers."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, n, 4, generator=generator) for n in (1, 3000, 3000))
    draw, i, j = Dropout(torch.tensor(3), 0.4), torch.tensor([2999]), torch.arange(3000)
    expected = tiled_attention(q, k, v, window(40), dropout=draw)
    table = ScoreBias(table=torch.zeros(1, 1, 1, 3000))
    seen, factors = window(40).mask(i, j), draw.factors(i[None], j[None], like=q)
    for found in (
        tiled_attention(q, k, v, window(40), bias=table, dropout=draw),
        gathered_attention(q, k, v, seen, scale=0.5, factors=factors),
    ):
        torch.testing.assert_close(found, expected)


def test_no_tensor_of_queries_times_keys() -> None:
    q, k, v = (torch.randn(1, 1, 2048, 8, requires_grad=True) for _ in range(3))
    draw = Dropout.drawn(0.1)
    assert count(lambda: tiled_attention(q, k, v, causal, dropout=draw)[0].sum().backward()).largest <= 1 << 18


def test_one_graph_in_which_seeds_differ() -> None:
    """A compiled call draws anew, and drops what the same seed drops outside."""
    torch._dynamo.reset()
    pattern, q, at = copy.deepcopy(causal & window(20)), torch.randn(1, 2, 40, 8), torch.arange(40)
    seen = pattern.mask(at, at)

    def step(q: Tensor) -> tuple[Tensor, Tensor]:
        draw = Dropout.drawn(0.5)
        factors = draw.factors(at[None], at[None], like=q)
        tiled = tiled_attention(q, q, q, pattern, scale=0.3, dropout=draw)[0]
        return tiled, masked_attention(q, q, q, seen, scale=0.3, factors=factors)[0]

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    torch.manual_seed(0)
    found = [compiled(q) for _ in range(2)]
    torch.manual_seed(0)
    for values in found:
        torch.testing.assert_close(values, step(q))
        torch.testing.assert_close(*values)
    assert not torch.equal(found[0][0], found[1][0])
