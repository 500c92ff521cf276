"""The Dense Synthesizer against loops, and against what it must not look at."""

import pytest
import torch

import regard


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(*, causal: bool = True, count: int = 2, kv_count: int | None = None, **options: object) -> regard.Attention:
    heads = regard.Heads(count=count, key_dim=4, value_dim=3, kv_count=kv_count, causal=causal, max_length=40)
    mechanism = regard.build("dense_synthesizer", heads, **options).double()
    with torch.no_grad():
        for at, bias in enumerate((mechanism.first_bias, mechanism.second_bias)):
            bias.copy_(draw(*bias.shape, seed=20 + at))
    return mechanism


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 13, 40])
def test_rows_one_at_a_time(length: int, causal: bool) -> None:
    mechanism = build(causal=causal, hidden=5)
    q, v = draw(1, 2, length, 4), draw(1, 2, length, 3, seed=2)
    keep = torch.arange(length)[None] % 4 != 2
    got = mechanism(q, q, v, key_mask=keep).values[0]
    w1, b1, w2, b2 = mechanism.first, mechanism.first_bias, mechanism.second, mechanism.second_bias
    for head in range(2):
        for i in range(length):
            row = w2[head] @ torch.relu(w1[head] @ q[0, head, i] + b1[head]) + b2[head]
            seen = [j for j in range(i + 1 if causal else length) if keep[0, j]]
            odds = torch.stack([torch.exp(row[j]) for j in seen])
            expected = sum(odd * v[0, head, j] for odd, j in zip(odds / odds.sum(), seen, strict=True))
            torch.testing.assert_close(got[head, i], expected, rtol=0, atol=1e-12)


def test_golden_values() -> None:
    mechanism = regard.build("dense_synthesizer", regard.Heads(count=1, key_dim=1, max_length=3), hidden=1).double()
    with torch.no_grad():
        for parameter, values in zip(mechanism.parameters(), ([1.0], [0.0], [1.0, 2.0, 5.0], [0.0] * 3), strict=True):
            parameter.copy_(torch.tensor(values, dtype=torch.float64).reshape(parameter.shape))
    x = torch.tensor([-1.0, 0.6931471805599453], dtype=torch.float64)[None, None, :, None]
    v = torch.tensor([0.0, 6.0], dtype=torch.float64)[None, None, :, None]
    # relu(-1) = 0: equal weights; relu(ln 2) = ln 2: odds 2 and 4
    assert mechanism(x, x, v).values.flatten().tolist() == pytest.approx([3.0, 4.0], abs=1e-12)


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


def test_columns_belong_to_slots_not_to_content() -> None:
    mechanism = build(causal=False)
    q, v = draw(1, 2, 9, 4), draw(1, 2, 9, 3, seed=2)
    order = torch.tensor([1, 0, 2, 3, 4, 5, 6, 7, 8])
    weights = regard.weights(mechanism, q, q)
    expected = weights @ v[:, :, order]
    torch.testing.assert_close(mechanism(q, q, v[:, :, order]).values, expected, rtol=0, atol=1e-12)


def test_limits() -> None:
    mechanism = build()
    long = draw(1, 2, 41, 4)
    for limited in (mechanism, build(impl="reference")):
        with pytest.raises(regard.LimitError, match="max_length=40"):
            limited(long, long, long[..., :3])
    with pytest.raises(regard.ConfigError, match="hidden=0"):
        build(hidden=0)
    with pytest.raises(regard.ConfigError, match="max_length"):
        regard.build("dense_synthesizer", regard.Heads(count=1, key_dim=2))
    short = draw(1, 2, 5, 4)
    with pytest.raises(regard.UnsupportedError, match="left padding"):
        mechanism(short, short, short[..., :3], key_mask=torch.arange(5)[None] > 1)
    with pytest.raises(regard.UnsupportedError, match="slots of one sequence"):
        build(causal=False)(short[:, :, :2], short, short[..., :3])
