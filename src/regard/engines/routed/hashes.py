"""Locality-sensitive hashes of directions: the closer two vectors, the likelier they collide, h(x) = h(y).

A family of hashes is (r, R, p, P)-sensitive, r < R and p > P, if vectors at a distance of at most r collide with
probability p or more, and those at R or more with P or less; of what lies between it says nothing. Both families here
are sensitive to the angle at any r < R, because their collisions fall as it grows, and hash c x as x for c > 0.
Amplification makes one answer of several independent hashes, and moves p and P apart.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.engines.routed import near_one, nearest_points, vertices
from regard.errors import ConfigError, InputError, ShapeError
from regard.types_of import validate

__all__ = [
    "Amplification",
    "And",
    "Or",
    "Xor",
    "amplified",
    "collision_probability",
    "cross_polytope_hash",
    "sensitivity",
    "sign_hash",
]

NODES = 96
"""of each integral. Up to 16 buckets the error stays below 1e-8 from an angle of 0.01 on, and below 2e-4 before;
of more the ridge is narrower: 5e-4 before at 1,000 buckets, and 1e-7 from 0.02 on at 100,000"""
FAR = 8.5
"""standard deviations beyond which a normal variable is not looked for"""


def cross_polytope_hash(
    x: Float[Tensor, "rows dim"], rotations: Float[Tensor, "hashes dim half"]
) -> Int[Tensor, "rows hashes"]:
    """h(x) = argmax([x R; -x R]), in float32; a tie goes to the lower bucket, a vector of zeros or NaN to the first.

    Args:
        x: vectors of any length.
        rotations: R of each hash, Gaussian, for `collision_probability` to hold. It has 2 half buckets.

    Returns:
        int32 buckets.

    Raises:
        ShapeError: another width.

    Example:
        >>> rotation = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(0))
        >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
        >>> bucket, same, opposite = cross_polytope_hash(torch.cat([x, 2 * x, -x]), rotation)[:, 0].tolist()
        >>> bucket == same, abs(bucket - opposite)
        (True, 3)

    Source: Andoni et al. 2015, Practical and optimal LSH for angular distance; as in Kitaev, Kaiser, Levskaya 2020.
    """
    if x.dim() != 2 or rotations.dim() != 3 or x.shape[1] != rotations.shape[1]:
        raise ShapeError(
            "a hash takes vectors (rows, dim) and rotations (hashes, dim, half) of the same dim, got "
            f"{tuple(x.shape)} and {tuple(rotations.shape)}"
        )
    points = vertices(rotations)[None]
    return nearest_points(near_one(x)[None], points, points.new_zeros(points.shape[:3]))[0]


def sign_hash(x: Float[Tensor, "rows dim"], directions: Float[Tensor, "hashes dim"]) -> Int[Tensor, "rows hashes"]:
    """h(x) = 1 where x . r < 0, else 0: the side of a random hyperplane, a cross-polytope hash of two buckets.

    Args:
        x: vectors of any length.
        directions: r of each hash, Gaussian.

    Returns:
        int32 bits.

    Raises:
        ShapeError: another width.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]])
        >>> sign_hash(x, torch.tensor([[1.0, 0.0], [0.5, -1.0]])).tolist()
        [[0, 0], [0, 1], [1, 1]]

    Source: Charikar 2002, Similarity estimation techniques from rounding algorithms, section 3.
    """
    return cross_polytope_hash(x, directions[..., None])


def collision_probability(angle: float, num_buckets: int = 2) -> float:
    """The probability that two vectors at an angle share the bucket of one hash with Gaussian R, whatever their width.

    Of two buckets 1 - angle / pi. Of b: x R and y R are b / 2 pairs of normal variables with correlation cos(angle),
    and b int int phi(s, t) P(|u| < s, |w| < t)^(b / 2 - 1) ds dt over s, t > 0 is the probability that the largest of
    both is the same one, on the same side.

    The integrals are sums over fixed points: up to 16 buckets exact to 1e-8 from an angle of 0.01 on and to 2e-4
    before, to 5e-4 before at 1,000 buckets.

    Args:
        angle: in radians, from 0 to pi.
        num_buckets: even, or 1 for a single bucket.

    Raises:
        InputError: an angle outside of 0 to pi.
        ConfigError: an odd number of buckets.

    Example:
        >>> round(collision_probability(math.pi / 3), 6)
        0.666667
        >>> round(collision_probability(math.pi / 2, 16), 6)  # nothing in common
        0.0625

    Source: Charikar 2002, section 3 (two buckets).
    """
    if not 0 <= angle <= math.pi:
        raise InputError(f"an angle lies between 0 and pi, got {angle}")
    if num_buckets < 1 or (num_buckets > 1 and num_buckets % 2):
        raise ConfigError(f"num_buckets must be even (a direction and its opposite) or 1, got {num_buckets}")
    if num_buckets == 1:
        return 1.0
    return 1 - angle / math.pi if num_buckets == 2 else _largest_of_both(angle, num_buckets // 2)


@cache
def _largest_of_both(angle: float, axes: int) -> float:
    """`collision_probability` by quadrature, in which t = s cos + z sin and P is an integral of w given u."""
    cos, sin = math.cos(angle), math.sin(angle)
    if sin < 1e-6:
        return 1.0 if cos > 0 else 0.0
    node, weight = _gauss_legendre(NODES)
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


def _gauss_legendre(count: int) -> tuple[Tensor, Tensor]:
    """Nodes in (-1, 1) and weights: eigenvalues of the Jacobi matrix and squares of what its vectors begin with."""
    k = torch.arange(1, count, dtype=torch.float64)
    beside = k / (4 * k.square() - 1).sqrt()
    node, vector = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
    return node, 2 * vector[0].square()


class Amplification(ABC):
    """A rule that makes one answer of `count` independent ones: whether two vectors collide."""

    count: int

    @abstractmethod
    def met(self, each: Bool[Tensor, "*answers count"]) -> Bool[Tensor, "*answers"]:
        """The answer from those of each hash."""

    @abstractmethod
    def probability(self, p: float) -> float:
        """That of the answer, where each hash has p."""


@dataclass(frozen=True)
class _Counted(Amplification):
    count: int

    def __post_init__(self) -> None:
        validate(type(self).__name__, "count", self.count, int)
        if self.count < 1:
            raise ConfigError(f"{type(self).__name__} takes at least one hash, got {self.count}")


@final
class And(_Counted):
    """Vectors collide if they do in all of `count` hashes: p^count, rare but telling.

    Example:
        >>> And(3).probability(0.5)
        0.125
    """

    def met(self, each: Bool[Tensor, "*answers count"]) -> Bool[Tensor, "*answers"]:
        return each.all(-1)

    def probability(self, p: float) -> float:
        return p**self.count


@final
class Or(_Counted):
    """Vectors collide if they do in any of `count` hashes: 1 - (1 - p)^count.

    Example:
        >>> Or(3).probability(0.5)
        0.875
    """

    def met(self, each: Bool[Tensor, "*answers count"]) -> Bool[Tensor, "*answers"]:
        return each.any(-1)

    def probability(self, p: float) -> float:
        return 1.0 if p == 1 else -math.expm1(self.count * math.log1p(-p))


@final
@dataclass(frozen=True)
class Xor(Amplification):
    """Vectors collide if they do in one of two hashes and not in the other: 2 p (1 - p), most at p = 1/2.

    Example:
        >>> Xor().probability(0.25)
        0.375
    """

    count: int = 2

    def __post_init__(self) -> None:
        if self.count != 2:
            raise ConfigError(f"Xor takes two hashes, got {self.count}")

    def met(self, each: Bool[Tensor, "*answers count"]) -> Bool[Tensor, "*answers"]:
        return each[..., 0] ^ each[..., 1]

    def probability(self, p: float) -> float:
        return 2 * p * (1 - p)


def amplified(met: Bool[Tensor, "*pairs hashes"], rules: Sequence[Amplification]) -> Bool[Tensor, "*pairs answers"]:
    """Whether pairs collide under rules, the first of which takes hashes that stand side by side.

    Args:
        met: whether each pair collides in each hash.
        rules: applied in order, each to groups of `count` answers of the one before.

    Raises:
        ShapeError: answers that do not fill the groups.

    Example:
        >>> met = torch.tensor([[True, True, False, True], [True, False, False, True]])
        >>> amplified(met, [And(2), Or(2)]).tolist()
        [[True], [False]]
    """
    for rule in rules:
        if met.shape[-1] % rule.count:
            raise ShapeError(f"{rule} takes groups of {rule.count}, which {met.shape[-1]} answers do not fill")
        met = rule.met(met.unflatten(-1, (-1, rule.count)))
    return met


def sensitivity(p: float, rules: Sequence[Amplification]) -> float:
    """The probability that a pair collides under rules if it does with probability p in one hash.

    And(k), then Or(l): 1 - (1 - p^k)^l, an S whose steep part lies near p = l^(-1 / k).

    Args:
        p: of one hash.
        rules: as of `amplified`.

    Raises:
        InputError: p outside of 0 to 1.

    Example:
        >>> near, far = (collision_probability(angle) for angle in (0.3, 1.2))
        >>> rules = [And(8), Or(8)]
        >>> round(near, 2), round(far, 2), round(sensitivity(near, rules), 2), round(sensitivity(far, rules), 2)
        (0.9, 0.62, 0.99, 0.16)

    Source: Indyk and Motwani 1998, Approximate nearest neighbors, section 4.
    """
    if not 0 <= p <= 1:
        raise InputError(f"a probability lies between 0 and 1, got {p}")
    for rule in rules:
        p = rule.probability(p)
    return p
