"""Hashes of `lsh_collisions` and their amplification: definitions, formulas by simulation, known points."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from evidence.claims._hashes import (
    ONE_OF_TWO,
    all_of,
    amplified,
    any_of,
    collision_probability,
    cross_polytope_hash,
    sensitivity,
)
from regard import Heads, build

pytestmark = pytest.mark.study

DRAWS = 60_000


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def collisions(angle: float, num_buckets: int, draws: int = DRAWS) -> Tensor:
    """Whether two vectors at an angle, of other lengths and in a plane that no axis spans, collide, per hash."""
    basis = torch.linalg.qr(randn(5, 5, seed=1).double()).Q
    x, y = basis[0], 3.7 * (math.cos(angle) * basis[0] + math.sin(angle) * basis[1])
    buckets = cross_polytope_hash(torch.stack([x, y]).float(), randn(draws, 5, num_buckets // 2, seed=2))
    return buckets[0] == buckets[1]


def assert_probability(met: Tensor, p: float) -> None:
    """Within 5 standard errors of the binomial, which are small enough to see a bias of one hundredth."""
    error = math.sqrt(p * (1 - p) / met.numel())
    assert 5 * error < 0.02
    assert abs(met.double().mean().item() - p) < 5 * error


def test_a_hash_is_the_nearest_of_columns_and_their_opposites() -> None:
    x, rotations = randn(50, 6), randn(4, 6, 3, seed=1)
    turned = torch.einsum("nd,hdc->nhc", x.double(), rotations.double())
    assert torch.equal(cross_polytope_hash(x, rotations).long(), torch.cat([turned, -turned], -1).argmax(-1))
    directions = randn(7, 6, seed=2)
    sides = cross_polytope_hash(x, directions[..., None])
    assert torch.equal(sides.long(), (x.double() @ directions.double().mT < 0).long())
    assert torch.equal(cross_polytope_hash(1e-3 * x, directions[..., None]), sides)


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        (torch.float16, (2.0**12,)),
        (torch.bfloat16, (2.0**-100, 2.0**120)),
        (torch.float32, (2.0**-100, 2.0**125)),
        (torch.float64, (2.0**-1000, 2.0**-200, 2.0**200, 2.0**1000)),
    ],
)
def test_a_hash_knows_no_length_in_any_type(dtype: torch.dtype, sizes: tuple[float, ...]) -> None:
    x, rotations = randn(200, 8).clamp(-3, 3).to(dtype), randn(4, 8, 4, seed=1)
    mechanism = build("lsh(num_buckets=8, rounds=4)", Heads(count=1, key_dim=8))
    for size in sizes:
        assert torch.equal(cross_polytope_hash(size * x, rotations), cross_polytope_hash(x, rotations))
        assert torch.equal(
            cross_polytope_hash(size * x, rotations[..., :1]), cross_polytope_hash(x, rotations[..., :1])
        )
        assert torch.equal(mechanism.hash((size * x)[None, None]), mechanism.hash(x[None, None]))


def test_it_is_the_hash_of_lsh() -> None:
    mechanism = build("lsh(num_buckets=8, rounds=3)", Heads(count=2, key_dim=6, seed=1))
    x = randn(1, 2, 40, 6)
    buckets = mechanism.decisions(x, x).keys[0]
    for head in range(2):
        assert torch.equal(cross_polytope_hash(x[0, head], mechanism.rotations[head]), buckets[head])
    assert (buckets[0] != buckets[1]).any()


@pytest.mark.parametrize("num_buckets", [2, 4, 16])
@pytest.mark.parametrize("angle", [0.3, 1.0, 2.0])
def test_collisions_are_as_likely_as_the_formula_says(angle: float, num_buckets: int) -> None:
    assert_probability(collisions(angle, num_buckets), collision_probability(angle, num_buckets))


def test_probabilities_at_known_points() -> None:
    for angle in (0.0, 0.4, 1.1, 2.9, math.pi):
        assert collision_probability(angle, 2) == 1 - angle / math.pi
    for num_buckets in (4, 6, 32):
        assert collision_probability(0.0, num_buckets) == 1
        assert collision_probability(math.pi, num_buckets) == 0
        assert collision_probability(math.pi / 2, num_buckets) == pytest.approx(1 / num_buckets, abs=1e-9)
    # The four buckets of (u, v) are the signs of u + v and u - v, which are independent.
    for angle in (0.2, 1.0, 2.2):
        assert collision_probability(angle, 4) == pytest.approx((1 - angle / math.pi) ** 2, abs=1e-8)


@pytest.mark.parametrize("num_buckets", [4, 8, 64])
def test_probabilities_fall_with_the_angle_and_with_the_buckets(num_buckets: int) -> None:
    angles = [0.02, 0.1, 0.3, 0.8, 1.5, 2.2, 3.0]
    curve = [collision_probability(angle, num_buckets) for angle in angles]
    assert all(near > far for near, far in itertools.pairwise(curve))
    assert all(p < collision_probability(a, num_buckets // 2) for a, p in zip(angles, curve, strict=True))


@pytest.mark.parametrize(
    ("rules", "formula"),
    [
        ([all_of(4)], lambda p: p**4),
        ([any_of(4)], lambda p: 1 - (1 - p) ** 4),
        ([ONE_OF_TWO], lambda p: 2 * p * (1 - p)),
        ([all_of(3), any_of(5)], lambda p: 1 - (1 - p**3) ** 5),
        ([any_of(3), all_of(2)], lambda p: (1 - (1 - p) ** 3) ** 2),
        ([all_of(2), ONE_OF_TWO, any_of(2)], lambda p: 1 - (1 - 2 * p**2 * (1 - p**2)) ** 2),
    ],
)
@pytest.mark.parametrize("angle", [0.3, 1.0, 2.0])
def test_amplified_collisions_are_as_likely_as_the_formula_says(rules, formula, angle: float) -> None:
    p = collision_probability(angle, 2)
    assert sensitivity(p, rules) == pytest.approx(formula(p), abs=1e-12)
    assert_probability(amplified(collisions(angle, 2, 300_000), rules), formula(p))


def test_rules_by_hand() -> None:
    rows = torch.tensor([[False, False], [False, True], [True, False], [True, True]])
    for rule, answers in ((all_of(2), [0, 0, 0, 1]), (any_of(2), [0, 1, 1, 1]), (ONE_OF_TWO, [0, 1, 1, 0])):
        assert amplified(rows, [rule])[:, 0].int().tolist() == answers
    assert amplified(rows, []).equal(rows)
    assert sensitivity(0.3, []) == 0.3
    for rule in (all_of(9), any_of(9)):
        assert (sensitivity(0.0, [rule]), sensitivity(1.0, [rule])) == (0.0, 1.0)
    assert sensitivity(1e-12, [any_of(1000)]) == pytest.approx(1e-9, rel=1e-8)
    assert (sensitivity(1.0, [ONE_OF_TWO]), sensitivity(0.0, [ONE_OF_TWO])) == (0.0, 0.0)


def test_and_or_tells_near_from_far_better_than_one_hash() -> None:
    near, far = (collision_probability(angle, 2) for angle in (0.3, 1.2))
    rules = [all_of(8), any_of(8)]
    assert sensitivity(near, rules) > near
    assert sensitivity(far, rules) < far
