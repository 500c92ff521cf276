"""Position schemes against the numbers and identities of the literature."""

import cmath
import math

import pytest
import torch

from regard.core.errors import ConfigError, LimitError
from regard.core.info import Heads
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


def test_learned_gradient_reaches_only_used_rows_and_the_end_is_an_error():
    scheme = build_position("learned", HEADS, 4)
    scheme.embed(torch.zeros(1, 2, 4), torch.tensor([[3, 7]])).sum().backward()
    used = scheme.table.grad.abs().sum(1).nonzero().flatten()
    assert used.tolist() == [3, 7]
    with pytest.raises(LimitError, match="got positions -1 to 3"):
        scheme.embed(torch.zeros(1, 2, 4), torch.tensor([-1, 3]))
    with pytest.raises(LimitError, match="max_length=32"):
        scheme.embed(torch.zeros(1, 1, 4), torch.tensor([32]))
    with pytest.raises(ConfigError, match="max_length"):
        build_position("learned", Heads(count=1, key_dim=4), 4)


def test_rotary_gives_layers_the_slots_that_they_ask_for():
    """One tensor while they ask for the same, and never that of another call."""
    scheme, device = build_position("rotary", HEADS, 16), torch.device("cpu")
    for start, stop in ((0, 5), (3, 7), (3, 8), (0, 5)):
        slots = scheme.slots(start, stop, device)
        assert slots.tolist() == list(range(start, stop))
        assert scheme.slots(start, stop, device) is slots


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


@pytest.mark.parametrize(("fraction", "order"), [(1.0, [0, 2, 4, 6, 1, 3, 5, 7]), (0.5, [0, 2, 1, 3, 4, 5, 6, 7])])
def test_rotary_layouts_agree_after_one_permutation_of_q_and_k(fraction, order):
    """The rotated vectors are the same under the permutation, so their products are too."""
    q, k = draw(1, 2, 3, 8), draw(1, 2, 3, 8, seed=1)
    where = torch.tensor([2, 5, 11])
    published, halves = (
        build_position(f"rotary(layout={layout}, fraction={fraction})", HEADS, 16)
        for layout in ("interleaved", "halves")
    )
    turned = published.transform(q, k, where, where)
    other = halves.transform(q[..., order], k[..., order], where, where)
    for a, b in zip(turned, other, strict=True):
        assert (a[..., order] - b).abs().max() < 1e-12
    assert (turned[0] @ turned[1].mT - other[0] @ other[1].mT).abs().max() < 1e-12
    assert (halves.transform(q, k, where, where)[0] - turned[0]).abs().max() > 1e-3


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_partial_rotary_turns_by_the_angles_of_its_own_width(fraction):
    """theta_c = 10000^(-2c / width), width = fraction x key_dim, as in GPT-NeoX."""
    width = round(8 * fraction)
    scheme = build_position(f"rotary(fraction={fraction})", HEADS, 16)
    q = torch.ones(1, 2, 1, 8, dtype=torch.float64)
    got = scheme.transform(q, q, torch.tensor([7]), torch.tensor([7]))[0][0, 0, 0]
    for c in range(width // 2):
        angle = 7 * 10000 ** (-2 * c / width)
        assert abs(got[c] - math.cos(angle) + math.sin(angle)) < 1e-12
        assert abs(got[c + width // 2] - math.cos(angle) - math.sin(angle)) < 1e-12
    assert torch.equal(got[width:], q[0, 0, 0, width:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rotary_angles_are_exact_in_half_precision(dtype):
    """At position 65,001 an angle in bfloat16 would be off by whole turns; here only the result is rounded."""
    scheme = build_position("rotary", HEADS, 16)
    q = draw(1, 2, 4, 8).to(dtype)
    where = torch.tensor([0, 1, 1000, 65_001])
    got = scheme.transform(q, q, where, where)[0]
    exact = scheme.transform(q.double(), q.double(), where, where)[0]
    assert got.dtype == dtype
    assert (got.double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()


def test_an_odd_part_of_the_channels_is_refused():
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


@pytest.mark.parametrize(
    ("scheme", "weights"),
    [
        ("learned", ["table"]), ("t5_bias", ["table"]), ("shaw_keys", ["table"]), ("quadratic", ["centre"]),
        ("transformer_xl", ["content", "distance"]),
    ],
)  # fmt: skip
def test_initial_weights_have_the_given_size_and_come_from_the_seed(scheme, weights):
    def build(seed):
        heads = Heads(count=64, key_dim=64, max_length=64, seed=seed)
        return build_position(f"{scheme}(std=3.0)", heads, 64)

    first, again, other = build(0), build(0), build(1)
    for name in weights:
        weight = first.get_parameter(name)
        assert torch.equal(weight, again.get_parameter(name))
        assert not torch.equal(weight, other.get_parameter(name))
        assert abs(weight.std().item() / 3 - 1) < 5 / (2 * weight.numel()) ** 0.5, "five standard errors"


def test_names_and_unknown_options():
    assert {"alibi", "learned", "rotary", "sinusoidal", "transformer_xl"} <= set(names())
    with pytest.raises(ConfigError, match="did you mean 'rotary'"):
        build_position("rotry", HEADS, 16)
    with pytest.raises(ConfigError, match="did you mean 'base'"):
        build_position("rotary(bas=2.0)", HEADS, 16)


@pytest.mark.parametrize("base", ["0.0", "-1.0"])
def test_a_base_whose_angles_are_no_numbers_is_refused(base):
    with pytest.raises(ConfigError, match="rotary needs a positive base"):
        build_position(f"rotary(base={base})", HEADS, 16)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_a_part_of_the_channels_is_turned_also_where_the_length_is_its_width(layout):
    """Four of eight channels, four slots: the other channels stay, and these turn by slot times 1 and slot / 100."""
    scheme = build_position(f"rotary(fraction=0.5, layout={layout})", Heads(count=1, key_dim=8), 8)
    x, slots = draw(1, 1, 4, 8), torch.arange(4)
    turned, _ = scheme.transform(x, x, slots, slots)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    for slot in range(4):
        for plane, (one, two) in enumerate([(0, 2), (1, 3)] if layout == "halves" else [(0, 1), (2, 3)]):
            number = complex(float(x[0, 0, slot, one]), float(x[0, 0, slot, two]))
            wanted = number * cmath.exp(1j * slot / 100**plane)
            got = complex(float(turned[0, 0, slot, one]), float(turned[0, 0, slot, two]))
            assert abs(got - wanted) < 1e-6
