"""Hashes collide as their formulas say, and amplification moves near and far apart.

Claim: Two vectors at an angle t share the side of a random hyperplane with probability 1 - t / pi, and the nearest
vertex of a random cross-polytope more rarely the larger t is. So both are locality-sensitive for any r < R: vectors
within r of q collide with it with probability p or more, those beyond R with P or less, and p > P. The
attention-paradigm article prints the second clause for vectors within R, which asks nothing of far ones, and p < P, and
concludes about what lies between r and R, of which the definition says nothing. AND of k hashes gives p^k, OR of L
gives 1 - (1 - p)^L, XOR of two 2 p (1 - p); AND, then OR moves p and P apart.
Source: Charikar 2002, section 3; Andoni et al. 2015; Indyk and Motwani 1998, section 4; the attention-paradigm article,
its definition of locality-sensitive hashing
Control: A vector collides with itself at another length always, with its opposite never; at a right angle in one of two
and in one of sixteen buckets, by symmetry. A wrong hash can be seen: random codes collide in half of the cases at every
angle, which is 0.45 from the formula at 0.05 pi.
Measured: Pairs of vectors of other lengths in random planes of a space of 16 dimensions at seven angles from 0.05 pi to
0.9 pi, and 400,000 random hashes: of two buckets, whose formula is 1 - t / pi, and of sixteen, whose formula is a
double integral over pairs of normal numbers. Rules take disjoint groups of these hashes. A share of 400,000 has a
standard error of 0.0008 at most, of the 25,000 answers of AND, then OR 0.0032: biases of 0.01 and 0.03 would be seen.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, setting
from evidence.claims._hashes import (
    ONE_OF_TWO,
    Amplification,
    all_of,
    amplified,
    any_of,
    collision_probability,
    cross_polytope_hash,
    sensitivity,
)
from regard.core.attention import generator

ANGLES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
"""between two vectors, in units of pi"""
RULES: Mapping[str, tuple[Amplification, ...]] = {
    "and": (all_of(4),),
    "or": (any_of(4),),
    "xor": (ONE_OF_TWO,),
    "and, or": (all_of(4), any_of(4)),
}
STEEP = (all_of(8), any_of(8))
"""the rule that tells a near vector (0.1 pi) from a far one (0.5 pi)"""
TOGETHER = 20_000
"""hashes at a time"""


class LshCollisions(Claim):
    controls = (
        Control("same", "the same direction: share", 1.0, tolerance=0.0),
        Control("opposite", "the opposite direction: share", 0.0, tolerance=0.0),
        Control("sign right", "a right angle, two buckets: share", 0.5, tolerance=0.01),
        Control("cross right", "a right angle, sixteen buckets: share", 1 / 16, tolerance=0.01),
        Control("codes", "random codes: share - formula, furthest", 0.45, tolerance=0.01),
    )
    findings = (
        Finding("sign", "two buckets: share - formula, furthest", at_most=0.01),
        Finding("cross", "sixteen buckets: share - formula, furthest", at_most=0.01),
        Finding("sign rules", "two buckets, AND, OR, XOR: share - formula, furthest", at_most=0.03),
        Finding("cross rules", "sixteen buckets, AND, OR, XOR: share - formula, furthest", at_most=0.03),
        Finding("sign falls", "two buckets: least fall of the share to the next angle", at_least=0.001),
        Finding("cross falls", "sixteen buckets: least fall of the share to the next angle", at_least=0.001),
        Finding("steep", "near - far: AND of 8, then OR of 8, over one hash", at_least=0.3),
    )
    least_seeds = 5
    plots = (
        Plot("hashes", "Collisions of one hash", "angle / pi", "share"),
        Plot("rules", "Two buckets, amplified", "angle / pi", "share"),
    )

    sign: int = 2
    """buckets of the hash whose formula is 1 - t / pi"""
    cross: int = 16
    hashes: int = setting(400_000, tiny=48_000)
    dim: int = 16

    def observe(self, seed: int) -> Observation:
        x, at_angles = vectors(self.dim, generator(seed, "vectors"))
        known = torch.stack([2.5 * x, -x])
        values: dict[str, float] = {}
        curves: dict[str, dict[str, Curve]] = {"hashes": {}, "rules": {}}
        for name, buckets in (("sign", self.sign), ("cross", self.cross)):
            met = self.met(x, torch.cat([at_angles, known]), buckets, generator(seed, "rotations", name))
            formula = [one_hash(name, math.pi * angle, buckets) for angle in ANGLES]
            shares = share(met[: len(ANGLES)])
            right = shares[ANGLES.index(0.5)]
            values |= {name: furthest(shares, formula), f"{name} right": right}
            values[f"{name} falls"] = min(near - far for near, far in itertools.pairwise(shares))
            curves["hashes"] |= {
                f"{buckets} buckets": (ANGLES, shares),
                f"{buckets} buckets, formula": (ANGLES, formula),
            }
            off: list[float] = []
            for label, rules in RULES.items():
                measured = share(amplified(met[: len(ANGLES)], rules))
                expected = [sensitivity(p, rules) for p in formula]
                off.append(furthest(measured, expected))
                if name == "sign":
                    curves["rules"] |= {label: (ANGLES, measured), f"{label}, formula": (ANGLES, expected)}
            values[f"{name} rules"] = max(off)
            if name == "sign":
                values |= {"same": float(met[-2].double().mean()), "opposite": float(met[-1].double().mean())}
                values["steep"] = steeper(met[: len(ANGLES)], shares)
        values["codes"] = furthest(self.of_codes(seed), [1 - angle for angle in ANGLES])
        return Observation(values, curves)

    def met(self, x: Tensor, others: Tensor, buckets: int, draw: torch.Generator) -> Tensor:
        """Whether x collides with each other vector in each hash, (vectors, hashes)."""
        parts: list[Tensor] = []
        for first in range(0, self.hashes, TOGETHER):
            count = min(TOGETHER, self.hashes - first)
            rotations = torch.randn(count, self.dim, buckets // 2, generator=draw)
            chosen = cross_polytope_hash(torch.cat([x[None], others]), rotations)
            parts.append(chosen[1:] == chosen[:1])
        return torch.cat(parts, 1)

    def of_codes(self, seed: int) -> list[float]:
        """Shares of a hash that does not look at the direction."""
        codes = torch.randint(0, 2, (len(ANGLES) + 1, self.hashes), generator=generator(seed, "codes"))
        return share(codes[1:] == codes[:1])


def vectors(dim: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """A vector, and one of another length at each angle to it, each in a plane of its own."""
    x = torch.randn(dim, generator=draw, dtype=torch.float64)
    others: list[Tensor] = []
    for angle in ANGLES:
        away = torch.randn(dim, generator=draw, dtype=torch.float64)
        away -= (away @ x) / (x @ x) * x
        length = 0.2 + 5 * torch.rand((), generator=draw)
        turned = math.cos(math.pi * angle) * x / x.norm() + math.sin(math.pi * angle) * away / away.norm()
        others.append(length * turned)
    return x.float(), torch.stack(others).float()


def one_hash(name: str, angle: float, buckets: int) -> float:
    """The formula of a hash."""
    return 1 - angle / math.pi if name == "sign" else collision_probability(angle, buckets)


def share(met: Tensor) -> list[float]:
    return met.double().mean(-1).tolist()


def furthest(measured: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(measured, expected, strict=True))


def steeper(met: Tensor, shares: Sequence[float]) -> float:
    """What the steep rule adds to the difference of near and far."""
    near, far = ANGLES.index(0.1), ANGLES.index(0.5)
    answers = share(amplified(met[:, : met.shape[1] // 64 * 64], STEEP))
    return answers[near] - answers[far] - (shares[near] - shares[far])
