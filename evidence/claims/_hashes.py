"""Locality-sensitive hashes of directions: the closer two vectors, the likelier they collide, h(x) = h(y).

A family of hashes is (r, R, p, P)-sensitive, r < R and p > P, if vectors at a distance of at most r collide with
probability p or more, and those at R or more with P or less; of what lies between it says nothing. Hashes by the
nearest vertex of a cross-polytope are sensitive to the angle at any r < R, because their collisions fall as it grows,
and hash c x as x for c > 0. Amplification makes one answer of several independent hashes, and moves p and P apart.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.engines.routed import near_one, nearest_points, vertices

NODES = 96
"""of each integral. Up to 16 buckets the error stays below 1e-8 from an angle of 0.01 on, and below 2e-4 before"""
FAR = 8.5
"""standard deviations beyond which a normal variable is not looked for"""


def cross_polytope_hash(
    x: Float[Tensor, "rows dim"], rotations: Float[Tensor, "hashes dim half"]
) -> Int[Tensor, "rows hashes"]:
    """h(x) = argmax([x R; -x R]), in float32; a tie goes to the lower bucket, a vector of zeros or NaN to the first.

    Args:
        x: vectors of any length.
        rotations: R of each hash, Gaussian, for `collision_probability` to hold. It has 2 half buckets; of two buckets
            it is the side of a random hyperplane.

    Source: Andoni et al. 2015, Practical and optimal LSH for angular distance; as in Kitaev, Kaiser, Levskaya 2020.
    """
    points = vertices(rotations)[None]
    return nearest_points(near_one(x)[None], points, points.new_zeros(points.shape[:3]))[0]


def collision_probability(angle: float, num_buckets: int) -> float:
    """The probability that two vectors at an angle share the bucket of one hash with Gaussian R, whatever their width.

    Of two buckets 1 - angle / pi (Charikar 2002, section 3). Of b: x R and y R are b / 2 pairs of normal variables with
    correlation cos(angle), and b int int phi(s, t) P(|u| < s, |w| < t)^(b / 2 - 1) ds dt over s, t > 0 is the
    probability that the largest of both is the same one, on the same side. The integrals are sums over fixed points, in
    which t = s cos + z sin and P is an integral of w given u.

    Args:
        angle: in radians, from 0 to pi.
        num_buckets: even.
    """
    if num_buckets == 2:
        return 1 - angle / math.pi
    cos, sin, axes = math.cos(angle), math.sin(angle), num_buckets // 2
    if sin < 1e-6:
        return 1.0 if cos > 0 else 0.0
    node, weight = map(torch.from_numpy, np.polynomial.legendre.leggauss(NODES))
    s, of_s = FAR * (node + 1) / 2, weight * FAR / 2
    low = (-s * cos / sin).clamp(-FAR, FAR)
    span = (FAR - low) / 2
    z = low[:, None] + span[:, None] * (node + 1)
    t = s[:, None] * cos + z * sin
    u = s[:, None] * node
    sides = (t[..., None] - cos * u[:, None]) / sin, (-t[..., None] - cos * u[:, None]) / sin
    given = torch.special.ndtr(sides[0]) - torch.special.ndtr(sides[1])
    inside = (given * (_normal(u) * weight * s[:, None])[:, None]).sum(-1)
    pairs = (_normal(s) * of_s * span)[:, None] * _normal(z) * weight
    return float(2 * axes * (pairs * inside.clamp(0, 1) ** (axes - 1)).sum())


def _normal(x: Tensor) -> Tensor:
    return (x.square() / -2).exp() / math.sqrt(2 * math.pi)


@dataclass(frozen=True)
class Amplification:
    """A rule that makes one answer of `count` independent ones: whether two vectors collide.

    met: the answer (*answers,) from those of each hash (*answers, count). probability: that of the answer, where each
    hash has p.
    """

    count: int
    met: Callable[[Tensor], Tensor]
    probability: Callable[[float], float]


def all_of(count: int) -> Amplification:
    """AND: vectors collide if they do in all of `count` hashes, p^count, rare but telling."""
    return Amplification(count, lambda each: each.all(-1), lambda p: p**count)


def any_of(count: int) -> Amplification:
    """OR: vectors collide if they do in any of `count` hashes, 1 - (1 - p)^count."""
    return Amplification(
        count, lambda each: each.any(-1), lambda p: 1.0 if p == 1 else -math.expm1(count * math.log1p(-p))
    )


ONE_OF_TWO = Amplification(2, lambda each: each[..., 0] ^ each[..., 1], lambda p: 2 * p * (1 - p))
"""XOR: vectors collide if they do in one of two hashes and not in the other, 2 p (1 - p), most at p = 1/2"""


def amplified(met: Bool[Tensor, "*pairs hashes"], rules: Sequence[Amplification]) -> Bool[Tensor, "*pairs answers"]:
    """Whether pairs collide under rules, the first of which takes hashes that stand side by side.

    Args:
        met: whether each pair collides in each hash.
        rules: applied in order, each to groups of `count` answers of the one before.
    """
    for rule in rules:
        met = rule.met(met.unflatten(-1, (-1, rule.count)))
    return met


def sensitivity(p: float, rules: Sequence[Amplification]) -> float:
    """The probability that a pair collides under rules if it does with probability p in one hash.

    AND of k, then OR of l: 1 - (1 - p^k)^l, an S whose steep part lies near p = l^(-1 / k).

    Source: Indyk and Motwani 1998, Approximate nearest neighbors, section 4.
    """
    for rule in rules:
        p = rule.probability(p)
    return p
