"""The scores of a step: products, biases by distance, masks; and the gradients of the biases."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.tiles._layout import Group, Layout, Step
from regard.attention.tiles._operands import LOG2E, Gradients, Operands, Share, lanes, pick, put


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
            lane = scores.narrow(2, slot * size, size)
            if mask.dtype == torch.bool:
                lane.masked_fill_(mask, -math.inf)
            else:
                lane.add_(mask)
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


class BiasGradients:
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
