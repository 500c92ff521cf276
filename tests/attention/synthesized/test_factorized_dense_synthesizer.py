"""The factorized Dense Synthesizer against loops over blocks and slots."""

import math

import pytest
import torch

import regard


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(*, causal: bool = True, count: int = 2, kv_count: int | None = None, **options: object) -> regard.Attention:
    heads = regard.Heads(count=count, key_dim=4, value_dim=3, kv_count=kv_count, causal=causal, max_length=40)
    mechanism = regard.build("factorized_dense_synthesizer", heads, **options).double()
    with torch.no_grad():
        for at, bias in enumerate((mechanism.first_bias, mechanism.blocks_bias, mechanism.within_bias)):
            bias.copy_(draw(*bias.shape, seed=20 + at))
    return mechanism


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("length", "size"), [(1, None), (2, 4), (13, 4), (40, 4), (40, None), (13, 50)])
def test_rows_one_at_a_time(length: int, size: int | None, causal: bool) -> None:
    mechanism = build(causal=causal, hidden=5, block_size=size)
    size = size or 7  # the square root of 40, rounded up
    q, v = draw(1, 2, length, 4), draw(1, 2, length, 3, seed=2)
    keep = torch.arange(length)[None] % 4 != 2
    got = mechanism(q, q, v, key_mask=keep).values[0]
    for head in range(2):
        inner = (mechanism.first[head] @ q[0, head].T + mechanism.first_bias[head][:, None]).relu().T
        blocks = (mechanism.blocks[head] @ inner.T + mechanism.blocks_bias[head][:, None]).T.tolist()
        within = (mechanism.within[head] @ inner.T + mechanism.within_bias[head][:, None]).T.tolist()
        assert len(within[0]) == size
        for i in range(length):
            logits = [a * b for a in blocks[i] for b in within[i]]  # block after block
            seen = [j for j in range(i + 1 if causal else length) if keep[0, j]]
            odds = [math.exp(logits[j]) for j in seen]
            expected = sum(odd / sum(odds) * v[0, head, j] for odd, j in zip(odds, seen, strict=True))
            torch.testing.assert_close(got[head, i], expected, rtol=0, atol=1e-12)


def test_golden_values() -> None:
    heads = regard.Heads(count=1, key_dim=1, max_length=4)
    mechanism = regard.build("factorized_dense_synthesizer", heads, hidden=1, block_size=2).double()
    weights = ([1.0], [0.0], [1.0, 2.0], [0.0] * 2, [0.0, 1.0], [0.0] * 2)
    with torch.no_grad():
        for parameter, values in zip(mechanism.parameters(), weights, strict=True):
            parameter.copy_(torch.tensor(values, dtype=torch.float64).reshape(parameter.shape))
    x = torch.tensor([-1.0, math.log(2) ** 0.5, 0.0, 0.0], dtype=torch.float64)[None, None, :, None]
    v = torch.tensor([8.0, 16.0, 24.0, 0.0], dtype=torch.float64)[None, None, :, None]
    # h = 0: equal weights; h = sqrt(ln 2): logits (1, 2) h x (0, 1) h = 0, ln 2, 0, 2 ln 2, so odds 1, 2, 1, 4
    assert mechanism(x, x, v).values[0, 0, :2, 0].tolist() == pytest.approx([12.0, 8.0], abs=1e-12)


def test_it_has_about_two_square_roots_of_columns() -> None:
    heads = regard.Heads(count=1, key_dim=4, max_length=1000)
    mechanism = regard.build("factorized_dense_synthesizer", heads)
    assert (mechanism.within.shape[1], mechanism.blocks.shape[1]) == (32, 32)
    assert sum(p.numel() for p in mechanism.parameters()) == 4 * 4 + 4 + 2 * (4 * 32 + 32)


def test_no_two_slots_share_their_logit() -> None:
    """Rows that are repeated, each with its own period, would: 6 and 4 have the common divisor 2."""
    mechanism = regard.build(
        "factorized_dense_synthesizer", regard.Heads(count=1, key_dim=4, max_length=24), block_size=4
    ).double()
    q = draw(1, 1, 24, 4)
    row = regard.weights(mechanism, q, q)[0, 0, 3]
    assert len(row.unique()) == 24


def test_a_row_depends_on_its_own_token_alone() -> None:
    mechanism = build(causal=False)
    q, k, v = draw(1, 2, 9, 4), draw(1, 2, 9, 4, seed=1), draw(1, 2, 9, 3, seed=2)
    before = mechanism(q, k, v).values
    other = draw(1, 2, 9, 4, seed=3)
    other[:, :, 4] = q[:, :, 4]
    after = mechanism(other, draw(1, 2, 9, 4, seed=4), v).values
    assert torch.equal(after[:, :, 4], before[:, :, 4])
    assert not torch.equal(after[:, :, 5], before[:, :, 5])
    assert mechanism.info.reads == "qv"


def test_limits() -> None:
    long = draw(1, 2, 41, 4)
    for limited in (build(), build(impl="reference")):
        with pytest.raises(regard.LimitError, match="max_length=40"):
            limited(long, long, long[..., :3])
    for options in ({"hidden": 0}, {"block_size": 0}):
        with pytest.raises(regard.ConfigError, match="=0"):
            build(**options)
    with pytest.raises(regard.ConfigError, match="max_length"):
        regard.build("factorized_dense_synthesizer", regard.Heads(count=1, key_dim=2))
