"""The Random Synthesizer against loops over its matrix, and what it can and cannot do."""

import math

import pytest
import torch

import regard


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(*, causal: bool = True, count: int = 2, kv_count: int | None = None, **options: object) -> regard.Attention:
    heads = regard.Heads(count=count, key_dim=4, value_dim=3, kv_count=kv_count, causal=causal, max_length=40)
    return regard.build("random_synthesizer", heads, **options).double()


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 13, 40])
def test_rows_one_at_a_time(length: int, causal: bool, trainable: bool) -> None:
    mechanism = build(causal=causal, trainable=trainable)
    q, v = draw(2, 2, length, 4), draw(2, 2, length, 3, seed=2)
    keep = torch.stack([torch.arange(length) % 4 != 2, torch.ones(length, dtype=torch.bool)])
    got = mechanism(q, q, v, key_mask=keep).values
    r = mechanism.matrix.tolist()
    for row in range(2):
        for head in range(2):
            for i in range(length):
                seen = [j for j in range(i + 1 if causal else length) if keep[row, j]]
                odds = [math.exp(r[head][i][j]) for j in seen]
                expected = sum(odd / sum(odds) * v[row, head, j] for odd, j in zip(odds, seen, strict=True))
                torch.testing.assert_close(got[row, head, i], expected, rtol=0, atol=1e-12)


def test_golden_values() -> None:
    mechanism = regard.build("random_synthesizer", regard.Heads(count=1, key_dim=1, causal=True, max_length=3)).double()
    with torch.no_grad():
        rows = [[5.0, 0, 0], [0, math.log(3), 9.0], [0, math.log(2), math.log(5)]]
        mechanism.matrix.copy_(torch.tensor([rows], dtype=torch.float64))
    v = torch.tensor([4.0, 8.0, 16.0], dtype=torch.float64)[None, None, :, None]
    # odds 1 | 1, 3 | 1, 2, 5
    assert mechanism(v, v, v).values.flatten().tolist() == pytest.approx([4.0, 7.0, 12.5], abs=1e-12)


def test_the_weights_are_those_of_the_length_whatever_the_tokens() -> None:
    mechanism = build(causal=False)
    one, other = (regard.weights(mechanism, draw(1, 2, 9, 4, seed=s), draw(1, 2, 9, 4, seed=s + 1)) for s in (0, 5))
    assert torch.equal(one, other)
    assert mechanism.info.reads == "v"
    nothing = torch.full((1, 2, 9, 4), float("nan"), dtype=torch.float64)
    v = draw(1, 2, 9, 3)
    assert torch.equal(mechanism(nothing, nothing, v).values, mechanism(nothing.zero_(), nothing, v).values)


@pytest.mark.parametrize("offset", [0, 1, 5])
def test_a_matrix_of_one_diagonal_is_a_convolution(offset: int) -> None:
    """A large logit at distance `offset` copies the value there: what content cannot move, a position can."""
    mechanism = build()
    with torch.no_grad():
        mechanism.matrix.copy_(1e3 * torch.ones(40, 40).tril(-offset).triu(-offset))
    v = draw(1, 2, 40, 3)
    got = mechanism(draw(1, 2, 40, 4), draw(1, 2, 40, 4), v).values
    torch.testing.assert_close(got[:, :, offset:], v[:, :, : 40 - offset], rtol=0, atol=0)


def test_a_query_behind_nothing_but_padding_gives_0_beside_a_later_token() -> None:
    """Pieces may begin with padding once a piece came before: what is hidden is no average of what comes later."""
    mechanism = build()
    q, v = draw(1, 2, 6, 4), draw(1, 2, 6, 3, seed=2)
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    first = mechanism(
        q[:, :, :3], q[:, :, :3], v[:, :, :3], key_mask=nothing, state=mechanism.initial_state(1, dtype=torch.float64)
    )
    keep = torch.tensor([[False, True, True]])
    got = mechanism(q[:, :, 3:], q[:, :, 3:], v[:, :, 3:], key_mask=keep, state=first.state).values
    assert not first.values.any()
    assert not got[:, :, 0].any()
    torch.testing.assert_close(got[:, :, 1], v[:, :, 4], rtol=0, atol=1e-12)


def test_what_is_fixed_is_no_parameter() -> None:
    fixed, learned = build(trainable=False), build()
    assert not list(fixed.parameters())
    assert torch.equal(fixed.matrix, learned.matrix.detach())
    assert fixed.info.stochastic
    assert not learned.info.stochastic
    assert list(fixed.state_dict()) == list(learned.state_dict()) == ["matrix"]
    before = learned.matrix.detach().clone()
    for mechanism in (fixed, learned):
        mechanism.redraw(torch.Generator().manual_seed(1))
    assert torch.equal(learned.matrix, before)
    assert not torch.equal(fixed.matrix, before)


def test_the_matrix_starts_as_normal_numbers() -> None:
    numbers = regard.build("random_synthesizer", regard.Heads(count=2, key_dim=1, max_length=200)).matrix
    assert abs(numbers.mean().item()) < 5 / numbers.numel() ** 0.5
    assert abs(numbers.var().item() - 1) < 5 * (2 / numbers.numel()) ** 0.5


def test_limits() -> None:
    long = draw(1, 2, 41, 4)
    for limited in (build(), build(impl="reference")):
        with pytest.raises(regard.LimitError, match="max_length=40"):
            limited(long, long, long[..., :3])
    with pytest.raises(regard.ConfigError, match="max_length"):
        regard.build("random_synthesizer", regard.Heads(count=1, key_dim=2))
    short = draw(1, 2, 5, 4)
    with pytest.raises(regard.UnsupportedError, match="left padding"):
        build()(short, short, short[..., :3], key_mask=torch.arange(5)[None] > 1)
    with pytest.raises(regard.UnsupportedError, match="slots of one sequence"):
        build(causal=False)(short[:, :, :2], short, short[..., :3])
    for impl in ("auto", "reference"):
        with pytest.raises(regard.LimitError, match="max_length=40"):
            build(causal=False, impl=impl)(short, short, short[..., :3], query_start=37)
