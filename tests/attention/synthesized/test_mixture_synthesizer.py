"""The mixture of Synthesizers against its parts alone, and against loops."""

import math

import pytest
import torch

import regard

EVERY = ("random", "factorized_random", "dense", "factorized_dense", "dot_product")


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(*, causal: bool = True, count: int = 2, kv_count: int | None = None, **options: object) -> regard.Attention:
    heads = regard.Heads(count=count, key_dim=4, value_dim=3, kv_count=kv_count, causal=causal, max_length=40)
    mechanism = regard.build("mixture_synthesizer", heads, **options).double()
    with torch.no_grad():
        mechanism.balance.copy_(draw(*mechanism.balance.shape, seed=30))
    return mechanism


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 13, 40])
def test_random_and_dot_product_one_row_at_a_time(length: int, causal: bool) -> None:
    mechanism = build(causal=causal)
    q, k, v = draw(1, 2, length, 4), draw(1, 2, length, 4, seed=1), draw(1, 2, length, 3, seed=2)
    keep = torch.arange(length)[None] % 4 != 2
    got = mechanism(q, k, v, key_mask=keep).values[0]
    shares = [math.exp(x) for x in mechanism.balance.tolist()]
    shares = [share / sum(shares) for share in shares]
    r = mechanism.synthesizers["random"].matrix.tolist()
    for head in range(2):
        for i in range(length):
            seen = [j for j in range(i + 1 if causal else length) if keep[0, j]]
            dots = [(q[0, head, i] @ k[0, head, j]).item() / 2 for j in seen]
            odds = [math.exp(shares[0] * r[head][i][j] + shares[1] * dot) for j, dot in zip(seen, dots, strict=True)]
            expected = sum(odd / sum(odds) * v[0, head, j] for odd, j in zip(odds, seen, strict=True))
            torch.testing.assert_close(got[head, i], expected, rtol=0, atol=1e-12)


def test_golden_values() -> None:
    heads = regard.Heads(count=1, key_dim=1, max_length=2)
    mechanism = regard.build("mixture_synthesizer", heads).double()
    with torch.no_grad():
        mechanism.balance.copy_(torch.tensor([math.log(3), 0.0], dtype=torch.float64))  # shares 3/4 and 1/4
        matrix = [[[0.0, 0.0], [4 * math.log(2), 0.0]]]
        mechanism.synthesizers["random"].matrix.copy_(torch.tensor(matrix, dtype=torch.float64))
    x = torch.tensor([1.0, 4 * math.log(2)], dtype=torch.float64)[None, None, :, None]
    k = torch.tensor([0.0, 1.0], dtype=torch.float64)[None, None, :, None]
    v = torch.tensor([30.0, 0.0], dtype=torch.float64)[None, None, :, None]
    # second query: 3/4 (4 ln 2, 0) + 1/4 (0, 4 ln 2) = (3 ln 2, ln 2): odds 8 and 2
    assert mechanism(x, k, v).values.flatten()[1].item() == pytest.approx(24.0, abs=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("part", EVERY)
def test_a_share_of_one_is_that_part_alone(part: str, causal: bool) -> None:
    mechanism = build(causal=causal, parts=EVERY, count=4, kv_count=2)
    with torch.no_grad():
        mechanism.balance.copy_(torch.tensor([0.0 if each == part else -1e3 for each in EVERY]))
    name = "softmax" if part == "dot_product" else f"{part}_synthesizer"
    alone = regard.build(name, mechanism.heads).double()
    if part != "dot_product":
        alone.load_state_dict(mechanism.synthesizers[part].state_dict())
    q, k, v = draw(2, 4, 11, 4), draw(2, 2, 11, 4, seed=1), draw(2, 2, 11, 3, seed=2)
    torch.testing.assert_close(mechanism(q, k, v).values, alone(q, k, v).values, rtol=0, atol=1e-12)


def test_every_part_starts_with_an_equal_share() -> None:
    mechanism = regard.build("mixture_synthesizer", regard.Heads(count=1, key_dim=4, max_length=8), parts=EVERY)
    assert mechanism.balance.tolist() == [0.0] * 5


def test_parts_draw_apart_from_synthesizers_beside_the_mixture() -> None:
    heads = regard.Heads(count=2, key_dim=4, max_length=8, seed=3)
    inside = regard.build("mixture_synthesizer", heads).synthesizers["random"].matrix
    assert not torch.equal(inside, regard.build("random_synthesizer", heads).matrix)


def test_options_reach_their_parts() -> None:
    mechanism = build(parts=("factorized_random", "dense", "factorized_dense"), rank=3, hidden=5, block_size=6)
    parts = mechanism.synthesizers
    assert parts["factorized_random"].rank == 3
    assert parts["dense"].hidden == parts["factorized_dense"].hidden == 5
    assert parts["factorized_dense"].block_size == 6
    assert build(parts=("factorized_random", "dense")).synthesizers["factorized_random"].rank == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": ("random",)}, "two different parts or more"),
        ({"parts": ("random", "dot")}, "dot_product"),
        ({"parts": ("random", "random")}, "two different parts or more"),
        ({"rank": 3}, "rank belongs to factorized_random, got rank=3 with parts="),
        ({"hidden": 3}, "hidden belongs to dense or factorized_dense, got hidden=3"),
        ({"parts": ("dense", "random"), "block_size": 3}, "block_size belongs to factorized_dense"),
        ({"parts": ("dense", "random"), "hidden": 0}, "hidden=0"),
    ],
)
def test_refusals(options: dict[str, object], message: str) -> None:
    with pytest.raises(regard.ConfigError, match=message):
        build(**options)


def test_limits() -> None:
    long = draw(1, 2, 41, 4)
    for limited in (build(), build(impl="reference")):
        with pytest.raises(regard.LimitError, match="max_length=40"):
            limited(long, long, long[..., :3])
    with pytest.raises(regard.ConfigError, match="max_length"):
        regard.build("mixture_synthesizer", regard.Heads(count=1, key_dim=2))
