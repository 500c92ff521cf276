"""A pattern as disjoint parts, each walked in the order of positions in which its pairs lie close together.

In natural order `strided(64)` has a pair in every tile of 64 x 64. Sorted by their residue modulo 64 the same positions
are 64 short sequences, each attending to itself alone. Likewise `summary(64, 8)` is an eighth of the keys, all of which
are seen. A pattern such as `causal & (window(64) | strided(64))` is therefore cut at its strided and summary terms;
what several terms allow belongs to the first of them.
"""

import functools
import operator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.patterns import Columns, Pattern, Residues, everything

TILE = 64
"""Positions in a tile."""
MOST_TERMS = 16
"""A pattern with more terms stays whole."""
SAVED_TILES = 2
"""Tiles that another order must save for each query tile; gathering and merging costs about one."""


class Part(NamedTuple):
    """Pairs of a pattern, and the order in which they are walked."""

    pattern: Pattern
    order: Residues | Columns | None


class Lanes(NamedTuple):
    """Positions in tiles; the tiles of one class attend to the tiles of the same class alone."""

    positions: Int[Tensor, "classes tiles tile"]
    """padding goes on in the same steps"""
    real: Bool[Tensor, "classes tiles tile"]
    """False: padding"""
    indices: Int[Tensor, "classes tiles tile"] | None = None
    """which of the call's positions it is; padding is a copy of the first; None: the natural order"""
    step: int = 1
    """between neighbours of a class, where there are no holes"""

    def moved(self, device: torch.device) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """(position of each lane, whether it is padding, lane of each position), or nothing in the natural order."""
        if self.indices is None:
            return None, None, None
        real, lanes = self.real.flatten(), self.indices.flatten()
        back = torch.empty(int(real.sum()), dtype=torch.long)
        back[lanes[real]] = real.nonzero().flatten()
        return lanes.to(device), (~real).to(device), back.to(device)


def split(pattern: Pattern, queries: Int[Tensor, " queries"], keys: Int[Tensor, " keys"]) -> list[Part]:
    """The disjoint parts of a pattern.

    Args:
        pattern: of one head.
        queries, keys: positions, ascending.
    """
    seen = int(queries[0] - keys[-1]), int(queries[-1] - keys[0])
    if pattern.sign == "disjoint":
        apart = [_ordered(_literals(term), seen) for term in pattern.terms]
        return [Part(_joined(literals, order), order) for literals, order in apart]
    terms = [_ordered(literals, seen) for literals in _terms(pattern)]
    if all(order is None for _, order in terms):
        return [Part(pattern, None)]
    parts: list[Part] = []
    earlier: list[Pattern] = []
    for order in dict.fromkeys(sorted((order for _, order in terms), key=lambda x: x is not None)):
        joint = [literals for literals, best in terms if best == order]
        union = functools.reduce(operator.or_, [_joined(literals, order) for literals in joint])
        parts.append(Part(functools.reduce(lambda rest, taken: rest & ~taken, earlier, union), order))
        earlier += [_joined(literals, None) for literals in joint]
    return parts


def _literals(pattern: Pattern) -> list[Pattern]:
    """The conditions that must hold together."""
    if pattern.sign == "&":
        return [literal for term in pattern.terms for literal in _literals(term)]
    return [pattern]


def _terms(pattern: Pattern) -> list[list[Pattern]]:
    """The pattern as a union of terms, each a list of what must hold together."""
    if pattern.sign == "|":
        return [literals for term in pattern.terms for literals in _terms(term)]
    if pattern.sign == "&":
        left, right = (_terms(term) for term in pattern.terms)
        if len(left) * len(right) <= MOST_TERMS:
            return [x + y for x in left for y in right]
    return [[pattern]]


def _ordered(literals: list[Pattern], seen: tuple[int, int]) -> tuple[list[Pattern], Residues | Columns | None]:
    """The literals and the order that pays most for them, if any does."""
    low = max(seen[0], *(x.distances[0] for x in literals))
    high = min(seen[1], *(x.distances[1] for x in literals))
    tiles = max(high - low, 0) / TILE
    saved = {x.order: tiles * _saved_share(x.order) for x in literals if x.order is not None}
    best = max(saved, key=lambda order: saved[order], default=None)
    return literals, best if best is not None and saved[best] >= SAVED_TILES else None


def _saved_share(order: Residues | Columns) -> float:
    """Tiles touched in natural order less those in this order, out of all."""
    if isinstance(order, Residues):
        return min(1.0, (2 * TILE - 1) / order.stride) - 1 / order.stride
    return min(1.0, (order.count + TILE - 1) / order.stride) - order.count / order.stride


def _joined(literals: list[Pattern], order: Residues | Columns | None) -> Pattern:
    """All of the literals, except what the selection of keys makes certain."""
    left = [x for x in literals if not (isinstance(order, Columns) and x.order == order)]
    return functools.reduce(operator.and_, left or [everything])


def natural(positions: Int[Tensor, " length"], tile: int = TILE) -> Lanes:
    """Positions as they are."""
    missing = -len(positions) % tile
    extra = positions[-1] + 1 + torch.arange(missing)
    real = torch.arange(len(positions) + missing) < len(positions)
    return Lanes(torch.cat([positions, extra]).view(1, -1, tile), real.view(1, -1, tile))


def arranged(positions: Int[Tensor, " length"], order: Residues | Columns, *, keys: bool) -> Lanes | None:
    """Positions in another order; None: nothing is left of them. Queries stay as they are where keys are selected."""
    if isinstance(order, Residues):
        return _by_residue(positions, order.stride)
    if not keys:
        return natural(positions)
    residue = positions % order.stride
    chosen = ((residue >= order.low) & (residue < order.low + order.count)).nonzero().flatten()
    if not len(chosen):
        return None
    count = -(-len(chosen) // TILE)
    lanes = natural(positions[chosen], -(-len(chosen) // count))
    indices = torch.zeros(lanes.real.numel(), dtype=torch.long)
    indices[: len(chosen)] = chosen
    return lanes._replace(indices=indices.view(lanes.real.shape))


def _by_residue(positions: Tensor, stride: int) -> Lanes:
    """One class per residue, padded to the longest, in as few equal tiles as hold it."""
    residue = positions % stride
    order = residue.argsort(stable=True)
    sizes = torch.bincount(residue, minlength=stride)
    longest = int(sizes.max())
    tiles = -(-longest // TILE)
    tile = -(-longest // tiles)
    within = torch.arange(len(order)) - (sizes.cumsum(0) - sizes)[residue[order]]
    lane = residue[order] * tiles * tile + within
    indices, real = torch.zeros(stride * tiles * tile, dtype=torch.long), torch.zeros(stride * tiles * tile).bool()
    indices[lane], real[lane] = order, True
    shape = stride, tiles * tile
    last = torch.full((stride,), -1).scatter_reduce_(0, residue, positions, "amax")
    past_end = torch.arange(tiles * tile) - (sizes[:, None] - 1)
    there = torch.where(real.view(shape), positions[indices].view(shape), last[:, None] + stride * past_end)
    return Lanes(*(x.view(stride, tiles, tile) for x in (there, real, indices)), step=stride)
