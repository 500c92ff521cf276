"""Position schemes against the numbers and identities of the literature."""

import math

import pytest
import torch

from regard.errors import ConfigError, LimitError
from regard.info import Heads
from regard.position import build_position, names
from regard.position.alibi import slopes

HEADS = Heads(count=2, key_dim=8, max_length=32, seed=3)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_sinusoidal_values():
    scheme = build_position("sinusoidal", HEADS, 6)
    got = scheme.embed(torch.zeros(1, 3, 6, dtype=torch.float64), torch.tensor([0, 1, 5]))[0]
    for row, i in zip(got, (0, 1, 5), strict=True):
        for c in range(3):
            angle = i / 10000 ** (2 * c / 6)
            assert abs(row[2 * c] - math.sin(angle)) < 1e-12
            assert abs(row[2 * c + 1] - math.cos(angle)) < 1e-12


def test_sinusoidal_products_depend_on_the_distance_only_and_layouts_are_permutations():
    codes = {}
    for layout in ("interleaved", "halves"):
        scheme = build_position(f"sinusoidal(layout={layout})", HEADS, 16)
        codes[layout] = scheme.embed(torch.zeros(1, 40, 16, dtype=torch.float64), torch.arange(40))[0]
        products = codes[layout] @ codes[layout].T
        for distance in range(40):
            diagonal = products.diagonal(distance)
            assert (diagonal - diagonal[0]).abs().max() < 1e-10
    both = torch.cat([codes["interleaved"][:, 0::2], codes["interleaved"][:, 1::2]], 1)
    assert torch.equal(both, codes["halves"])


def test_sinusoidal_odd_width():
    scheme = build_position("sinusoidal", HEADS, 5)
    assert scheme.embed(torch.zeros(1, 2, 5), torch.arange(2)).shape == (1, 2, 5)


def test_learned_gradient_reaches_only_used_rows_and_the_end_is_an_error():
    scheme = build_position("learned", HEADS, 4)
    scheme.embed(torch.zeros(1, 2, 4), torch.tensor([[3, 7]])).sum().backward()
    used = scheme.table.grad.abs().sum(1).nonzero().flatten()
    assert used.tolist() == [3, 7]
    with pytest.raises(LimitError, match="max_length=32"):
        scheme.embed(torch.zeros(1, 1, 4), torch.tensor([32]))
    with pytest.raises(ConfigError, match="max_length"):
        build_position("learned", Heads(count=1, key_dim=4), 4)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_rotary_is_relative_keeps_norms_and_starts_at_the_identity(layout):
    scheme = build_position(f"rotary(layout={layout})", HEADS, 16)
    q, k = draw(1, 2, 1, 8), draw(1, 2, 1, 8, seed=1)

    def rotated(i, j):
        return scheme.transform(q, k, torch.tensor([i]), torch.tensor([j]))

    def score(i, j):
        a, b = rotated(i, j)
        return (a * b).sum(-1)

    for shift in (1, 17, 1000):
        assert (score(9, 2) - score(9 + shift, 2 + shift)).abs().max() < 1e-6
    assert (score(9, 2) - score(9, 3)).abs().max() > 1e-3
    assert (rotated(13, 0)[0].norm() - q.norm()).abs() < 1e-6
    assert torch.equal(rotated(0, 0)[0], q)


def test_rotary_planes_turn_by_the_published_angles():
    scheme = build_position("rotary(layout=interleaved)", HEADS, 16)
    q = torch.zeros(1, 2, 1, 8, dtype=torch.float64)
    q[..., 0::2] = 1
    got = scheme.transform(q, q, torch.tensor([5]), torch.tensor([5]))[0][0, 0, 0]
    for c in range(4):
        angle = 5 * 10000 ** (-2 * c / 8)
        assert abs(got[2 * c] - math.cos(angle)) < 1e-6
        assert abs(got[2 * c + 1] - math.sin(angle)) < 1e-6


def test_rotary_layouts_agree_after_one_permutation_of_q_and_k():
    q, k = draw(1, 2, 3, 8), draw(1, 2, 3, 8, seed=1)
    where = torch.tensor([2, 5, 11])
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    a, b = build_position("rotary(layout=interleaved)", HEADS, 16).transform(q, k, where, where)
    c, d = build_position("rotary(layout=halves)", HEADS, 16).transform(q[..., order], k[..., order], where, where)
    assert (a @ b.mT - c @ d.mT).abs().max() < 1e-6


def test_partial_rotary_leaves_the_rest_alone():
    scheme = build_position("rotary(fraction=0.5)", HEADS, 16)
    q = draw(1, 2, 3, 8)
    turned = scheme.transform(q, q, torch.arange(1, 4), torch.arange(1, 4))[0]
    assert torch.equal(turned[..., 4:], q[..., 4:])
    assert not torch.allclose(turned[..., :4], q[..., :4])
    with pytest.raises(ConfigError, match="even"):
        build_position("rotary(fraction=0.4)", HEADS, 16)


def test_alibi_slopes_for_any_number_of_heads():
    assert slopes(8) == [2.0**-t for t in range(1, 9)]
    assert slopes(6) == [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    want = [*slopes(8), 0.70710678, 0.35355339, 0.17677670, 0.08838835]
    assert max(abs(a - b) for a, b in zip(slopes(12), want, strict=True)) < 1e-8


def test_alibi_curve_is_minus_slope_times_distance():
    bias = build_position("alibi", HEADS, 16).bias(draw(1, 2, 3, 8), -2, 4)
    got = bias.logits(torch.tensor([4]), torch.tensor([0, 3, 4, 6]))[0, :, 0]
    for h, slope in enumerate((2.0**-4, 2.0**-8)):
        assert got[h].tolist() == [-slope * 4, -slope, 0.0, -slope * 2]


def test_transformer_xl_equals_the_four_published_terms():
    dim, length = 16, 7
    scheme = build_position("transformer_xl(std=1.0)", HEADS, dim).double()
    q, k = draw(1, 2, length, 8), draw(1, 2, length, 8, seed=1)
    where = torch.arange(length)
    moved, keys = scheme.transform(q, k, where, where)
    got = moved @ keys.mT / math.sqrt(8) + scheme.bias(q, 0, length - 1).logits(where, where)
    for h in range(2):
        u, v, w = scheme.content[h], scheme.distance[h], scheme.relative[h]
        for i in range(length):
            for j in range(i + 1):
                angle = [(i - j) / 10000 ** (2 * c / dim) for c in range(dim // 2)]
                r = torch.tensor([*map(math.sin, angle), *map(math.cos, angle)], dtype=torch.float64)
                want = (q[0, h, i] + u) @ k[0, h, j] + (q[0, h, i] + v) @ (r @ w)
                assert abs(got[0, h, i, j] - want / math.sqrt(8)) < 1e-10


def test_names_and_unknown_options():
    assert {"alibi", "learned", "rotary", "sinusoidal", "transformer_xl"} <= set(names())
    with pytest.raises(ConfigError, match="did you mean 'rotary'"):
        build_position("rotry", HEADS, 16)
    with pytest.raises(ConfigError, match="did you mean 'base'"):
        build_position("rotary(bas=2.0)", HEADS, 16)
