"""The operands of a call as tiles: which heads go together, and how a step picks its tiles out of them."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.attention.tiles._layout import BUDGET, Group, Layout, Plan, Step

LOG2E = 1.4426950408889634
LOWEST = -1e30
"""Stands for -inf where -inf - -inf must not be NaN."""

Tiles = Float[Tensor, "tiles tile dim"]


class Operands(NamedTuple):
    """What both passes read."""

    q: Float[Tensor, "batch heads queries dim"]
    k: Float[Tensor, "batch kv_heads keys dim"]
    v: Float[Tensor, "batch kv_heads keys value"]
    hidden: Float[Tensor, "batch 1 keys 1"] | None
    """0 or -inf, added to the scores"""
    curve: Float[Tensor, "heads distances"] | None
    query: Float[Tensor, "batch heads queries position_dim"] | None
    relative: Float[Tensor, "heads distances position_dim"] | None
    high: int
    scale: float

    def in_tiles(self, plan: Plan) -> "Operands":
        """The operands in whole tiles and in base 2."""
        layout = plan.layouts[0]  # all layouts of a plan have tiles of one size
        hidden = None if self.hidden is None else by_key(self.hidden, layout)
        curve = None if self.curve is None else self.curve * LOG2E
        query = None if self.query is None else by_query(self.query * LOG2E, layout)
        q, k, v = by_query(self.q, layout), by_key(self.k, layout), by_key(self.v, layout)
        return Operands(q, k, v, hidden, curve, query, self.relative, self.high, self.scale)


def by_query(x: Tensor, layout: Layout) -> Tensor:
    """x (batch, heads, queries, dim) in whole query tiles."""
    return _padded(x, -x.shape[2] % layout.query_tile)


def by_key(x: Tensor, layout: Layout) -> Tensor:
    """x (batch, heads, keys, dim) in whole key tiles."""
    return _padded(x, -x.shape[2] % layout.key_tile)


def _padded(x: Tensor, missing: int) -> Tensor:
    return F.pad(x, (0, 0, 0, missing)) if missing else x.contiguous()


class Share(NamedTuple):
    """Heads served together: one, cut into tiles; or, where one tile holds everything, several that are its tiles."""

    layout: Layout
    rows: slice
    heads: slice
    kv: slice

    @property
    def count(self) -> int:
        return self.heads.stop - self.heads.start

    @property
    def spread(self) -> int:
        """Query heads on each head of keys."""
        return self.count // (self.kv.stop - self.kv.start)

    def queries(self, x: Tensor) -> Tiles:
        """The query tiles of x, a view."""
        return x[self.rows, self.heads].view(-1, self.layout.query_tile, x.shape[-1])

    def keys(self, x: Tensor) -> Tiles:
        """The key tiles of x, a view unless several query heads of the share use the same."""
        x = x[self.rows, slice(0, 1) if x.shape[1] == 1 else self.kv]
        if self.count > x.shape[1]:
            x = x.repeat_interleave(self.count // x.shape[1], 1)
        return x.view(-1, self.layout.key_tile, x.shape[-1])

    def fold(self, x: Tensor, tiles: Tiles) -> None:
        """Add what `keys` had to copy back to x."""
        if self.spread > 1:
            part = x[self.rows, self.kv]
            part += tiles.view(*part.shape[:2], self.spread, *part.shape[2:]).sum(2)

    def steps(self, group: Group) -> tuple[Step, ...]:
        if not self.layout.whole:
            return group.steps
        together = self.count * (self.rows.stop - self.rows.start)
        return (group.steps[0]._replace(count=together, advance=1),)


def shares(plan: Plan, batch: int, heads: int, kv_heads: int) -> Iterator[Share]:
    """All heads of all batch rows, as many together as fill the buffers."""
    group, together, rows, layout = heads // kv_heads, 1, 1, plan.layouts[0]
    if layout.whole:
        most = max(1, BUDGET // (layout.query_tile * layout.key_tile))
        together = max((h for h in range(group, heads + 1, group) if heads % h == 0 and h <= most), default=1)
        rows = max(1, most // heads) if together == heads else 1
    for b in range(0, batch, rows):
        for h in range(0, heads, together):
            if plan.of(h).groups:
                kv = slice(h // group, (h + together - 1) // group + 1)
                yield Share(plan.of(h), slice(b, min(b + rows, batch)), slice(h, h + together), kv)


def pick(tiles: Tiles, step: Step) -> Float[Tensor, "count tile dim"]:
    """The query tiles of a step."""
    return tiles.index_select(0, step.rows) if step.row is None else tiles.narrow(0, step.row, step.count)


def put(tiles: Tiles, step: Step, new: Tensor) -> None:
    """Write the query tiles of a step."""
    if step.row is None:
        tiles.index_copy_(0, step.rows, new)
    else:
        tiles.narrow(0, step.row, step.count).copy_(new)


def lanes(tiles: Tiles, step: Step, slots: int) -> Float[Tensor, "count lanes dim"]:
    """The keys of a step; where runs overlap, a view."""
    size, dim = tiles.shape[1:]
    if step.key is None:
        return tiles.index_select(0, step.keys).view(step.count, slots * size, dim)
    offset = tiles.storage_offset() + step.key * size * dim
    return tiles.as_strided((step.count, slots * size, dim), (step.advance * size * dim, dim, 1), offset)


def collect(tiles: Tiles, step: Step, slots: int, weights: Tensor, x: Tensor) -> None:
    """Add weights^T x to the keys of a step; a key that several query tiles see receives several terms."""
    size, dim = tiles.shape[1:]
    if step.key is None:
        tiles.index_add_(0, step.keys, torch.bmm(weights.mT, x).view(-1, size, dim))
    elif step.advance == 0:
        run = tiles.narrow(0, step.key, slots).view(slots * size, dim)
        run.addmm_(weights.flatten(0, 1).T, x.flatten(0, 1))
    else:
        for slot in range(slots):
            run = tiles.narrow(0, step.key + slot, step.count)
            run.baddbmm_(weights.narrow(2, slot * size, size).mT, x)


class Scratch:
    """Memory that every step uses again."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.buffers: dict[str, Tensor] = {}
        self.written: dict[str, tuple[int, ...]] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """A buffer with whatever it holds."""
        size = math.prod(shape)
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = self.like.new_empty(size)
        return self.buffers[name][:size].view(shape)

    def cleared(self, name: str, *shape: int, written: tuple[int, ...]) -> Tensor:
        """A buffer that is 0 outside of what is `written` at every step: cleared only when that changes."""
        buffer = self.take(name, *shape)
        if self.written.get(name) != (*shape, *written):
            buffer.zero_()
            self.written[name] = (*shape, *written)
        return buffer


class Gradients(NamedTuple):
    """Of the operands; empty where nothing learns."""

    q: Tensor
    k: Tensor
    v: Tensor
    curve: Tensor
    query: Tensor
    relative: Tensor
