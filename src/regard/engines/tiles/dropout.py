"""Dropout of attention weights: whether a weight is kept follows from the call's seed, its batch row, head and slots.

A number of 32 bits for each pair is made from numbers of its query (in its batch row and head) and of its key, by
integer products and shifts that wrap alike on every processor. A pair has the same number in both passes, in any tile
and any part of a pattern, whatever else a call computes. For one query the numbers of 2^32 keys are all different, so
that the probability of a drop is exact to 2^-32.

Source of the constants: Steele et al. 2014, Fast splittable pseudorandom number generators (splitmix64, as in Vigna's
code); Appleby 2011, MurmurHash3 (fmix32).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.core.precision import accumulation_dtype
from regard.engines.operator import without_gradient
from regard.engines.tiles.operands import Group, Labels, Scratch, Share, Step, lanes, pick

GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
FIRST, SECOND = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
ODD = 0x7FEB352D
LOW = (1 << 32) - 1


class Dropout(NamedTuple):
    """The weights that one call drops."""

    seed: Int[Tensor, ""]
    """on the CPU, so that reading it never waits"""
    probability: float

    @classmethod
    def drawn(cls, probability: float) -> "Dropout":
        """A seed from torch's default generator, which checkpointing puts back before it runs a pass again."""
        return cls(torch.randint(2**62, ()), probability)

    def factors(
        self,
        i: Int[Tensor, "#batch queries"],
        j: Int[Tensor, "#batch keys"],
        *,
        like: Float[Tensor, "batch heads queries dim"],
    ) -> Float[Tensor, "batch heads queries keys"]:
        """What to multiply the weights of all pairs by: 0, or 1 / (1 - probability).

        Args:
            i, j: slots of queries and keys, the same in every batch row or not.
            like: the queries; the factors are in the dtype in which their weights are computed.
        """
        batch, heads, wide = len(like), like.shape[1], accumulation_dtype(like.dtype)
        return factors_of_pairs(self.seed, i.expand(batch, -1), j.expand(batch, -1), heads, self.probability, wide)


@without_gradient(
    "dropout_factors",
    fake=lambda _, i, j, heads, __, dtype: i.new_empty((i.shape[0], heads, i.shape[1], j.shape[1]), dtype=dtype),
)
def factors_of_pairs(seed: Tensor, i: Tensor, j: Tensor, heads: int, probability: float, dtype: torch.dtype) -> Tensor:
    """As `Dropout.factors`; an operator, since a compiler that traced it might reason that products never wrap."""
    made = labels(int(seed), i, j, heads, probability)
    x = made.queries[..., :1] ^ made.keys.mT
    _finish(x, made.queries[..., 1:], torch.empty_like(x))
    return (x >= _threshold(probability)).to(dtype).div_(1 - probability)


def labels(
    seed: int, i: Int[Tensor, "batch queries"], j: Int[Tensor, "batch keys"], heads: int, probability: float
) -> Labels:
    """The numbers of queries at slots i and of keys at slots j."""
    batch, head = (torch.arange(1, n + 1, device=i.device) for n in (len(i), heads))
    rows = _mixed(_mixed(_mixed(seed + GOLDEN * batch)[:, None] + GOLDEN * head)[..., None] + GOLDEN * i[:, None])
    queries = torch.stack([rows >> 32, (rows & LOW) - (1 << 31) | 1], -1).to(torch.int32)
    columns = (j ^ seed) & LOW
    for shift, odd in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        columns = (columns ^ columns >> shift) * odd & LOW
    keys = ((columns ^ columns >> 16) - (1 << 31)).to(torch.int32)
    return Labels(queries, keys[:, None, :, None], probability)


def _mixed(x: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """splitmix64's function of the counter: one to one, and each bit of the result depends on every bit."""
    for shift, odd in ((30, FIRST), (27, SECOND)):
        x = (x ^ _shifted(x, shift)) * odd
    return x ^ _shifted(x, 31)


def _shifted(x: Int[Tensor, "*shape"], bits: int) -> Int[Tensor, "*shape"]:
    """Shifted to the right with zeros, not signs, moving in."""
    return x >> bits & (1 << 64 - bits) - 1


def _finish(x: Int[Tensor, "*pairs"], odd: Int[Tensor, "*#pairs"], room: Int[Tensor, "*pairs"]) -> None:
    """Mix the number of each pair, in place: one to one for a given query, whose own odd number is the last factor."""
    x.mul_(ODD)
    torch.bitwise_right_shift(x, 16, out=room)
    x.bitwise_xor_(room.bitwise_and_(0xFFFF)).mul_(odd)


def _threshold(probability: float) -> int:
    """Numbers of pairs, from -2^31 to 2^31 - 1, are dropped below it."""
    return min(round(probability * 2**32), LOW) - 2**31


class Dropped:
    """The pairs of one share, step by step."""

    def __init__(self, made: Labels, share: Share, scratch: Scratch) -> None:
        self.share, self.scratch = share, scratch
        self.queries, self.keys = share.queries(made.queries), share.keys(made.keys)
        self.threshold = _threshold(made.probability)

    def kept(self, group: Group, step: Step) -> Float[Tensor, "count tile lanes"]:
        """1 where the weight of a pair is kept and 0 where it is dropped, in a buffer of its own."""
        tile, size = self.share.layout.sizes
        shape = step.count, tile, group.slots * size
        x, room = (self.scratch.buffer(name, *shape, dtype=torch.int32) for name in ("pairs", "shifted"))
        rows = pick(self.queries, step)
        torch.bitwise_xor(rows[..., :1], lanes(self.keys, step, group.slots).mT, out=x)
        _finish(x, rows[..., 1:], room)
        return torch.ge(x, self.threshold, out=self.scratch.buffer("kept", *shape))
