"""The two passes over the tiles of a layout, in base 2 (whose exponential is the cheaper one) and in reused buffers.

Forward: scores of a step, their maximum m and sum l; values = 2^(s - m) V / l, lse = m + log2 l.
Backward: p = 2^(s - lse) again, then dV = p^T dO, dS = p (dO V^T - delta), dQ = dS K, dK = dS^T Q.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.layout import BUDGET, Group, Layout, Step

LOG2E = 1 / math.log(2)
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

    def in_tiles(self, layout: Layout) -> "Operands":
        """The operands in whole tiles and in base 2."""
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
        """The key tiles of x, a view unless heads are grouped."""
        kv = slice(0, 1) if x.shape[1] == 1 else self.kv
        x = x[self.rows, kv]
        if self.layout.whole and self.count > x.shape[1]:
            x = x.unsqueeze(2).expand(-1, -1, self.count // x.shape[1], -1, -1)
        return x.reshape(-1, self.layout.key_tile, x.shape[-1])

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


def shares(layout: Layout, batch: int, heads: int, kv_heads: int) -> Iterator[Share]:
    """All heads of all batch rows, as many together as fill the buffers."""
    group, together, rows = heads // kv_heads, 1, 1
    if layout.whole:
        most = max(1, BUDGET // (layout.query_tile * layout.key_tile))
        together = max((h for h in range(group, heads + 1, group) if heads % h == 0 and h <= most), default=1)
        rows = max(1, most // heads) if together == heads else 1
    for b in range(0, batch, rows):
        for h in range(0, heads, together):
            kv = slice(h // group, (h + together - 1) // group + 1)
            yield Share(layout, slice(b, min(b + rows, batch)), slice(h, h + together), kv)


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


class Scores:
    """The scores of a share, step by step, in one buffer."""

    def __init__(self, layout: Layout, operands: Operands) -> None:
        self.layout, self.operands = layout, operands
        self.buffers: dict[str, Tensor] = {}
        self.edges: dict[str, tuple[int, ...]] = {}

    def buffer(self, name: str, *shape: int) -> Tensor:
        """Scratch memory, the same at every step."""
        size = math.prod(shape)
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = self.operands.q.new_empty(size)
        return self.buffers[name][:size].view(shape)

    def zeros_around(self, name: str, *shape: int, written: tuple[int, ...]) -> Tensor:
        """Scratch memory that is 0 outside of what is `written` at every step: cleared only when that changes."""
        buffer = self.buffer(name, *shape)
        if self.edges.get(name) != (*shape, *written):
            buffer.zero_()
            self.edges[name] = (*shape, *written)
        return buffer

    def serve(self, share: Share) -> None:
        """Turn to a share."""
        x, self.share = self.operands, share
        self.q, self.k = share.queries(x.q), share.keys(x.k)
        self.hidden = None if x.hidden is None else share.keys(x.hidden)
        self.query = None if x.query is None else share.queries(x.query)
        self.curve = None if x.curve is None else x.curve[share.heads]
        self.relative = None if x.relative is None else x.relative[share.heads]
        self.ladder = None if self.curve is None else _ladder(self.curve, self.layout.query_tile)

    def of(self, group: Group, step: Step) -> Float[Tensor, "count tile lanes"]:
        """log2(e) times the logits, -inf where nothing may be seen."""
        size = self.layout.key_tile
        scores = self.buffer("scores", step.count, self.layout.query_tile, group.slots * size)
        keys = lanes(self.k, step, group.slots)
        scores.baddbmm_(pick(self.q, step), keys.mT, beta=0, alpha=self.operands.scale * LOG2E)
        if self.ladder is not None:
            self._add_curve(scores, group)
        if self.query is not None:
            self._add_relative(scores, group, step)
        for slot, mask in group.masks:
            scores.narrow(2, slot * size, size).add_(mask)
        if self.hidden is not None:
            scores += lanes(self.hidden, step, group.slots).mT
        return scores

    def by_head(self, x: Tensor) -> Float[Tensor, "more heads tile lanes"]:
        """A step with its heads apart, to meet what differs by head."""
        return x.view(-1, self.share.count, *x.shape[1:])

    def rungs(self, base: int, length: int) -> tuple[slice, slice]:
        """Which lanes of a run have a column of the ladder, and which columns."""
        columns = self.ladder.shape[-1]  # type: ignore[union-attr]
        begin = self.operands.high - base
        low, high = min(max(begin, 0), columns), max(min(begin + length, columns), 0)
        return slice(low - begin, high - begin), slice(low, high)

    def _add_curve(self, scores: Tensor, group: Group) -> None:
        by_head = self.by_head(scores)
        if group.distances is not None:
            by_head += _by_column(self.curve, self.operands.high - group.distances)  # type: ignore[arg-type]
        for start, stop, base in group.runs or ():
            there, columns = self.rungs(base, stop - start)
            by_head[..., start:stop][..., there] += self.ladder[..., columns]  # type: ignore[index]

    def columns(self, base: int, length: int) -> tuple[int, int, int]:
        """Columns [low, high) of `relative` that a run touches, and how many before them do not exist."""
        distances, width = self.relative.shape[1], self.layout.query_tile + length - 1  # type: ignore[union-attr]
        begin = self.operands.high - base - (self.layout.query_tile - 1)
        low = min(max(begin, 0), distances)
        high = max(min(begin + width, distances), low)
        return low, high - low, min(low - begin, width)

    def _add_relative(self, scores: Tensor, group: Group, step: Step) -> None:
        u, relative = pick(self.query, step), self.relative  # type: ignore[arg-type]
        tile = scores.shape[1]
        if group.distances is not None:
            scores += _by_column(_product(u, relative), self.operands.high - group.distances)
        for start, stop, base in group.runs or ():
            low, count, left = self.columns(base, stop - start)
            shape = (len(u), tile, tile + stop - start - 1)
            by_distance = self.zeros_around("by_distance", *shape, written=(left, count))
            _product(u, relative[:, low : low + count], out=by_distance[..., left : left + count])
            scores[..., start:stop] += _skewed(by_distance, stop - start)


def _product(u: Tensor, relative: Tensor, out: Tensor | None = None) -> Tensor:
    """u . relative^T, for one head or by head."""
    if len(relative) == 1:
        flat = None if out is None else out.flatten(0, 1)
        return torch.mm(u.flatten(0, 1), relative[0].T, out=flat).view(*u.shape[:2], -1)
    found = (u.view(-1, len(relative), *u.shape[1:]) @ relative.mT).flatten(0, 1)
    return found if out is None else out.copy_(found)


def _ladder(curve: Float[Tensor, "heads distances"], tile: int) -> Float[Tensor, "heads tile columns"]:
    """The curve once per query lane, one step further each: out[a, c] = curve[c - a], so that a run is a slice."""
    return F.pad(curve, (tile - 1, tile - 1)).unfold(-1, curve.shape[-1] + tile - 1, 1).flip(-2).contiguous()


def _skewed(by_distance: Tensor, length: int) -> Tensor:
    """A view (..., tile, length) of (..., tile, tile + length - 1): out[a, b] = in[a, tile - 1 - a + b]."""
    tile, strides = by_distance.shape[-2], by_distance.stride()
    offset = by_distance.storage_offset() + tile - 1
    return by_distance.as_strided((*by_distance.shape[:-1], length), (*strides[:-2], strides[-2] - 1, 1), offset)


def _by_column(x: Tensor, column: Int[Tensor, "tile lanes"]) -> Tensor:
    """x (heads, columns) or (count, tile, columns) at the columns; 0 where there is no such column."""
    at = column.clamp(0, x.shape[-1] - 1)
    picked = x[..., at] if x.ndim == 2 else x.gather(-1, at.expand(len(x), -1, -1))
    return picked.masked_fill((column < 0) | (column >= x.shape[-1]), 0)


def forward(layout: Layout, operands: Operands) -> tuple[Tensor, Tensor]:
    """Values (batch, heads, queries, value) and log-sum-exp (batch, heads, queries)."""
    queries, x = operands.q.shape[2], operands.in_tiles(layout)
    values = x.q.new_empty(*x.q.shape[:3], x.v.shape[3])
    if not layout.covered:
        values.zero_()
    lse = x.q.new_full((*x.q.shape[:3], 1), -math.inf)
    scores = Scores(layout, x)
    for share in shares(layout, x.q.shape[0], x.q.shape[1], x.k.shape[1]):
        scores.serve(share)
        v, out, level = share.keys(x.v), share.queries(values), share.queries(lse)
        for group in layout.groups:
            for step in share.steps(group):
                weights = scores.of(group, step)
                highest = weights.amax(-1, keepdim=True).clamp_min_(LOWEST)
                total = weights.sub_(highest).exp2_().sum(-1, keepdim=True)
                part = torch.bmm(weights, lanes(v, step, group.slots)).div_(total.clamp_min(1e-30))
                top = total.log2_().add_(highest)
                if group.again:
                    part, top = _merged(pick(out, step), pick(level, step), part, top)
                put(out, step, part)
                put(level, step, top)
    return values[:, :, :queries].contiguous(), lse[:, :, :queries, 0] / LOG2E


def _merged(values: Tensor, lse: Tensor, part: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """Two parts over disjoint keys as one, in base 2."""
    both = torch.logaddexp2(lse, top)
    safe = both.clamp_min(LOWEST)
    return values * (lse - safe).exp2_() + part * (top - safe).exp2_(), both


class Gradients(NamedTuple):
    """Of the operands; empty where nothing learns."""

    q: Tensor
    k: Tensor
    v: Tensor
    curve: Tensor
    query: Tensor
    relative: Tensor


def backward(
    layout: Layout,
    operands: Operands,
    values: Tensor,
    lse: Tensor,
    grad_values: Tensor,
    grad_lse: Tensor,
    curve_learns: bool,
    relative_learns: bool,
) -> Gradients:
    """Gradients of the operands from those of values and lse."""
    x, empty = operands.in_tiles(layout), lse.isinf()
    level = by_query((lse * LOG2E).masked_fill_(empty, LOWEST)[..., None], layout)
    of_lse = by_query(grad_lse.masked_fill(empty, 0)[..., None], layout)
    of_values, values = by_query(grad_values, layout), by_query(values, layout)
    grads = Gradients(
        torch.empty_like(x.q) if layout.covered else torch.zeros_like(x.q),
        torch.zeros_like(x.k),
        torch.zeros_like(x.v),
        torch.zeros_like(x.curve) if x.curve is not None and curve_learns else x.q.new_empty(0),
        torch.zeros_like(x.query) if x.query is not None and relative_learns else x.q.new_empty(0),
        torch.zeros_like(x.relative) if x.relative is not None and relative_learns else x.q.new_empty(0),
    )
    scores = Scores(layout, x)
    for share in shares(layout, x.q.shape[0], x.q.shape[1], x.k.shape[1]):
        scores.serve(share)
        tops, outs, slopes_lse, outers = (share.queries(y) for y in (level, values, of_lse, of_values))
        v, dq = share.keys(x.v), share.queries(grads.q)
        dk, dv = (share.keys(y) for y in (grads.k, grads.v))
        biases = _BiasGradients(scores, grads, share)
        for group in layout.groups:
            for step in share.steps(group):
                weights = scores.of(group, step).sub_(pick(tops, step)).exp2_()
                outer = pick(outers, step)
                collect(dv, step, group.slots, weights, outer)
                slope = scores.buffer("slope", *weights.shape)
                torch.bmm(outer, lanes(v, step, group.slots).mT, out=slope)
                # d loss / d logit = p (dO . v - delta): softmax takes away the average of dO . v; lse adds its own.
                average = scores.buffer("average", *outer.shape)
                delta = torch.mul(outer, pick(outs, step), out=average).sum(-1, keepdim=True)
                slope.sub_(delta.sub_(pick(slopes_lse, step))).mul_(weights)
                new = torch.bmm(slope, lanes(scores.k, step, group.slots))
                put(dq, step, new.add_(pick(dq, step)) if group.again else new)
                collect(dk, step, group.slots, slope, pick(scores.q, step))
                biases.add(group, step, slope)
        share.fold(grads.k, dk)
        share.fold(grads.v, dv)
        biases.finish()
    grads.q.mul_(operands.scale)
    grads.k.mul_(operands.scale)
    return grads


class _BiasGradients:
    """The gradients of the biases by distance, for one share."""

    def __init__(self, scores: Scores, grads: Gradients, share: Share) -> None:
        self.scores, self.high = scores, scores.operands.high
        self.curve = grads.curve[share.heads] if len(grads.curve) else None
        self.ladder = None if scores.ladder is None else scores.ladder.new_zeros(scores.ladder.shape)
        learns = len(grads.relative) > 0
        self.query = share.queries(grads.query) if learns else None
        self.relative = grads.relative[share.heads] if learns else None

    def add(self, group: Group, step: Step, slope: Tensor) -> None:
        if self.curve is not None:
            self._add_curve(group, slope)
        if self.query is not None:
            self._add_relative(group, step, slope)

    def finish(self) -> None:
        """The curve once from its ladder: distance c was written by lane a in column a + c."""
        if self.curve is not None and self.ladder is not None:
            heads, tile, columns = self.ladder.shape
            shape, strides = (heads, tile, self.curve.shape[1]), (tile * columns, columns + 1, 1)
            self.curve += self.ladder.as_strided(shape, strides).sum(1)

    def _add_curve(self, group: Group, slope: Tensor) -> None:
        by_head = self.scores.by_head(slope).sum(0)
        if group.distances is not None:
            _add_by_column(self.curve, self.high - group.distances, by_head)  # type: ignore[arg-type]
        for start, stop, base in group.runs or ():
            there, columns = self.scores.rungs(base, stop - start)
            self.ladder[..., columns] += by_head[..., start:stop][..., there]  # type: ignore[index]

    def _add_relative(self, group: Group, step: Step, slope: Tensor) -> None:
        scores, relative = self.scores, self.scores.relative
        u = pick(scores.query, step)  # type: ignore[arg-type]
        total, tile = torch.zeros_like(u), slope.shape[1]
        if group.distances is not None:
            by_distance = slope.new_zeros(*slope.shape[:2], relative.shape[1])  # type: ignore[union-attr]
            _add_by_column(by_distance, self.high - group.distances, slope)
            self._products(total, u, by_distance, slice(0, by_distance.shape[-1]))
        for start, stop, base in group.runs or ():
            low, count, left = scores.columns(base, stop - start)
            shape = (len(u), tile, tile + stop - start - 1)
            by_distance = scores.zeros_around("by_distance_slope", *shape, written=())
            _skewed(by_distance, stop - start).copy_(slope[..., start:stop])
            self._products(total, u, by_distance[..., left : left + count], slice(low, low + count))
        put(self.query, step, total.add_(pick(self.query, step)) if group.again else total)  # type: ignore[arg-type]

    def _products(self, total: Tensor, u: Tensor, by_distance: Tensor, columns: slice) -> None:
        relative = self.scores.relative[:, columns]  # type: ignore[index]
        heads = len(relative)
        if heads == 1:
            flat = by_distance.flatten(0, 1)
            total.view(-1, u.shape[-1]).addmm_(flat, relative[0])
            self.relative[0, columns].addmm_(flat.T, u.flatten(0, 1), alpha=1 / LOG2E)  # type: ignore[index]
            return  # u carries log2(e)
        apart = by_distance.view(-1, heads, *by_distance.shape[1:])
        total += (apart @ relative).flatten(0, 1)
        self.relative[:, columns] += (apart.mT @ u.view(-1, heads, *u.shape[1:])).sum(0) / LOG2E  # type: ignore[index]


def _add_by_column(grad: Tensor, column: Int[Tensor, "tile lanes"], slope: Tensor) -> None:
    """The inverse of `_by_column`: add the slopes to their columns."""
    at = column.clamp(0, grad.shape[-1] - 1)
    slope = slope.masked_fill((column < 0) | (column >= grad.shape[-1]), 0)
    if grad.ndim == 2:
        grad.index_add_(1, at.flatten(), slope.flatten(1))
    else:
        grad.scatter_add_(-1, at.expand(len(grad), -1, -1), slope)
