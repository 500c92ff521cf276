"""Relative keys and values against the paper's sums, one pair and one channel at a time."""

import math

import pytest
import torch

import regard
from regard.core.attention import ScoreBias
from regard.core.errors import ConfigError, UnsupportedError
from regard.testing.counting import count


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(max_distance: int, **heads) -> torch.nn.Module:
    return regard.build("shaw", regard.Heads(**heads), max_distance=max_distance).double().eval()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("most", [1, 3, 20])
def test_triple_loop(most: int, causal: bool) -> None:
    """Pairs, then channels, then labels clip(j - i, -c, c) + c."""
    length = 9
    mechanism = build(most, count=2, key_dim=3, value_dim=2, kv_count=1, causal=causal)
    q, k, v = draw(1, 2, length, 3), draw(1, 1, length, 3, seed=1), draw(1, 1, length, 2, seed=2)
    got = mechanism(q, k, v).values[0].detach()
    key_table, value_table = mechanism.key_table.tolist(), mechanism.value_table.tolist()
    assert (len(key_table), len(value_table)) == (2 * most + 1, 2 * most + 1)
    for head in range(2):
        for i in range(length):
            seen = range(i + 1 if causal else length)
            odds = []
            for j in seen:
                label = max(-most, min(most, j - i)) + most
                total = sum(float(q[0, head, i, c]) * (float(k[0, 0, j, c]) + key_table[label][c]) for c in range(3))
                odds.append(math.exp(total / math.sqrt(3)))
            for c in range(2):
                expected = 0.0
                for odd, j in zip(odds, seen, strict=True):
                    label = max(-most, min(most, j - i)) + most
                    expected += odd / sum(odds) * (float(v[0, 0, j, c]) + value_table[label][c])
                assert float(got[head, i, c]) == pytest.approx(expected, abs=1e-12)


def test_golden_values() -> None:
    """Two positions, one channel, q = k = v = 0: only the tables act, by j - i in (-1, 0, 1)."""
    mechanism = build(1, count=1, key_dim=1)
    with torch.no_grad():
        mechanism.key_table.copy_(torch.tensor([[1.0], [0.0], [-1.0]]))
        mechanism.value_table.copy_(torch.tensor([[10.0], [20.0], [40.0]]))
    one, zero = torch.ones(1, 1, 2, 1, dtype=torch.float64), torch.zeros(1, 1, 2, 1, dtype=torch.float64)
    e = math.e
    # Query 0 sees j - i = 0, 1 with logits 0, -1; query 1 sees j - i = -1, 0 with logits 1, 0.
    expected = [(20 + 40 / e) / (1 + 1 / e), (10 * e + 20) / (e + 1)]
    assert mechanism(one, zero, zero).values.flatten().tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_tables_of_zeros_are_plain_softmax(causal: bool) -> None:
    heads = {"count": 2, "key_dim": 4, "value_dim": 3, "causal": causal}
    mechanism = build(4, **heads)
    q, k, v = draw(2, 2, 15, 4), draw(2, 2, 15, 4, seed=1), draw(2, 2, 15, 3, seed=2)
    expected = regard.build("softmax", regard.Heads(**heads))(q, k, v).values
    assert (mechanism(q, k, v).values - expected).abs().max() > 0.1
    with torch.no_grad():
        mechanism.key_table.zero_()
        mechanism.value_table.zero_()
    torch.testing.assert_close(mechanism(q, k, v).values, expected, rtol=0, atol=1e-12)


def test_far_tokens_share_one_label() -> None:
    """Exchanging two tokens that are both c or further away changes nothing; a nearer one does."""
    mechanism = build(4, count=1, key_dim=4, causal=True)
    q, k, v = draw(1, 1, 200, 4), draw(1, 1, 200, 4, seed=1), draw(1, 1, 200, 4, seed=2)
    last = mechanism(q, k, v).values[:, :, -1]

    def exchanged(a: int, b: int) -> torch.Tensor:
        order = torch.arange(200)
        order[a], order[b] = b, a
        return mechanism(q, k[:, :, order], v[:, :, order]).values[:, :, -1]

    torch.testing.assert_close(exchanged(199 - 4, 0), last, rtol=0, atol=1e-12)
    torch.testing.assert_close(exchanged(199 - 5, 100), last, rtol=0, atol=1e-12)
    assert (exchanged(199 - 3, 0) - last).abs().max() > 1e-4


def test_longer_than_trained_runs_and_only_known_rows_are_read() -> None:
    mechanism = build(4, count=1, key_dim=4, causal=True)
    q, k, v = draw(1, 1, 300, 4), draw(1, 1, 300, 4, seed=1), draw(1, 1, 300, 4, seed=2)
    short = mechanism(q[:, :, :5], k[:, :, :5], v[:, :, :5]).values  # five positions touch every row of j <= i
    long = mechanism(q, k, v).values
    torch.testing.assert_close(long[:, :, :5], short, rtol=0, atol=1e-12)
    long.square().sum().backward()
    for table in (mechanism.key_table, mechanism.value_table):
        used = table.grad.abs().sum(-1) > 0
        assert used.tolist() == [True] * 5 + [False] * 4


@pytest.mark.parametrize("backward", [False, True])
def test_no_tensor_of_pairs(backward: bool) -> None:
    """A chunk has 2^18 pairs, here a quarter of them; a vector for each pair would be 32 times all."""
    length = 1024
    mechanism = regard.build("shaw", regard.Heads(count=1, key_dim=32, causal=True), max_distance=16)
    leaves = [draw(1, 1, length, 32, seed=s).float().requires_grad_(backward) for s in range(3)]

    def run() -> None:
        with torch.set_grad_enabled(backward):
            values = mechanism(*leaves).values
        if backward:
            values.sum().backward()

    assert count(run).largest <= length * length // 4


def test_refusals_say_why() -> None:
    with pytest.raises(ConfigError, match=r"max_distance=0 is not valid: .* greater than or equal to 1"):
        build(0, count=1, key_dim=4)
    mechanism = build(2, count=1, key_dim=4)
    with pytest.raises(UnsupportedError, match="two sequences have no distance"):
        mechanism(draw(1, 1, 2, 4), draw(1, 1, 5, 4), draw(1, 1, 5, 4))
    table = ScoreBias(table=torch.zeros(1, 1, 5, 5))
    with pytest.raises(UnsupportedError, match="shaw_keys"):
        mechanism(*(draw(1, 1, 5, 4) for _ in range(3)), bias=table)
