"""Biases by distance for one share: added to the scores of a step, and their gradients gathered from its slopes.

In a run of consecutive positions, query lane a and key lane b lie at distance base + a - b, which is column
high - base - a + b: each query lane reads the same columns one further to the left. Both biases are therefore slices
and skewed views; only positions with holes need an index per pair.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.engines.tiles.operands import LOG2E, Gradients, Group, Scratch, Share, Step, pick, put, thinned

Scores = Float[Tensor, "count tile lanes"]


class Curve:
    """A logit per head and distance.

    The ladder holds the curve once per query lane, each time one column further: ladder[a, c] = curve[c - a], or 0. A
    run is a slice of it.
    """

    def __init__(self, curve: Float[Tensor, "heads distances"], high: int, share: Share) -> None:
        self.curve, self.high = thinned(curve[share.heads], high, share.layout.step)
        self.first, self.share = high, share
        tile, distances = share.layout.sizes[0], self.curve.shape[1]
        repeated = F.pad(self.curve, (tile - 1, tile - 1)).unfold(-1, distances + tile - 1, 1)
        self.ladder = repeated.flip(-2).contiguous()

    def learn(self, grads: Gradients) -> bool:
        """Start to gather slopes, if there is a gradient to add them to."""
        if not len(grads.curve):
            return False
        self.into, _ = thinned(grads.curve[self.share.heads], self.first, self.share.layout.step)
        self.slopes = self.ladder.new_zeros(self.ladder.shape)
        self.odd = self.curve.new_zeros(self.curve.shape)
        return True

    def _slices(self, base: int, length: int) -> tuple[slice, slice]:
        """The lanes of a run that have a column of the ladder, and their columns."""
        begin, columns = self.high - base, self.ladder.shape[-1]
        low, high = min(max(begin, 0), columns), max(min(begin + length, columns), 0)
        return slice(low - begin, high - begin), slice(low, high)

    def add(self, scores: Scores, group: Group, step: Step) -> None:
        """Add the logits of a step."""
        del step
        by_head = scores.view(-1, self.share.count, *scores.shape[1:])
        if group.distances is not None:
            by_head += _by_column(self.curve, self.high - group.distances)
        for start, stop, base in group.runs or ():
            there, columns = self._slices(base, stop - start)
            by_head[..., start:stop][..., there] += self.ladder[..., columns]

    def gather(self, slope: Scores, group: Group, step: Step) -> None:
        """Take the slopes of a step's logits."""
        del step
        by_head = slope.view(-1, self.share.count, *slope.shape[1:]).sum(0)
        if group.distances is not None:
            _add_by_column(self.odd, self.high - group.distances, by_head)
        for start, stop, base in group.runs or ():
            there, columns = self._slices(base, stop - start)
            self.slopes[..., columns] += by_head[..., start:stop][..., there]

    def finish(self, grads: Gradients) -> None:
        """Add what was gathered: the slope of column c stands in column a + c of lane a."""
        del grads
        heads, tile, columns = self.slopes.shape
        shape, strides = (heads, tile, self.curve.shape[1]), (tile * columns, columns + 1, 1)
        self.into += self.odd.add_(self.slopes.as_strided(shape, strides).sum(1))


class Relative:
    """A logit per query and distance: the product of a vector of each."""

    def __init__(
        self,
        query: Float[Tensor, "batch heads queries dim"],
        relative: Float[Tensor, "heads distances dim"],
        high: int,
        share: Share,
        scratch: Scratch,
    ) -> None:
        self.first, self.tile, self.scratch = high, share.layout.sizes[0], scratch
        self.share, self.query = share, share.queries(query)
        self.relative, self.high = thinned(relative[share.heads], high, share.layout.step)

    def learn(self, grads: Gradients) -> bool:
        """Start to gather slopes, if there are gradients to add them to."""
        if not len(grads.relative):
            return False
        self.to_query = self.share.blank_queries(grads.query)
        self.to_relative, _ = thinned(grads.relative[self.share.heads], self.first, self.share.layout.step)
        return True

    def finish(self, grads: Gradients) -> None:
        """Bring back what was gathered in another order."""
        self.share.add_queries(grads.query, self.to_query)

    def _columns(self, base: int, length: int) -> tuple[slice, slice]:
        """Columns that a run touches, and where they stand among its tile + length - 1 distances."""
        distances, width = self.relative.shape[1], self.tile + length - 1
        begin = self.high - base - (self.tile - 1)
        low = min(max(begin, 0), distances)
        high = max(min(begin + width, distances), low)
        left = min(low - begin, width)
        return slice(low, high), slice(left, left + high - low)

    def add(self, scores: Scores, group: Group, step: Step) -> None:
        """Add the logits of a step."""
        u = pick(self.query, step)
        if group.distances is not None:
            scores += _by_column(self._product(u, self.relative), self.high - group.distances)
        for start, stop, base in group.runs or ():
            columns, there = self._columns(base, stop - start)
            shape = (len(u), self.tile, self.tile + stop - start - 1)
            by_distance = self.scratch.cleared("by_distance", *shape, written=(there.start, there.stop))
            self._product(u, self.relative[:, columns], out=by_distance[..., there])
            scores[..., start:stop] += _skewed(by_distance, stop - start)

    def _product(self, u: Tensor, relative: Tensor, out: Tensor | None = None) -> Tensor:
        if len(relative) == 1:
            rows = None if out is None else out.flatten(0, 1)
            return torch.mm(u.flatten(0, 1), relative[0].T, out=rows).view(*u.shape[:2], -1)
        by_distance = (u.view(-1, len(relative), *u.shape[1:]) @ relative.mT).flatten(0, 1)
        return by_distance if out is None else out.copy_(by_distance)

    def gather(self, slope: Scores, group: Group, step: Step) -> None:
        """Take the slopes of a step's logits."""
        u = pick(self.query, step)
        total = torch.zeros_like(u)
        if group.distances is not None:
            by_distance = slope.new_zeros(*slope.shape[:2], self.relative.shape[1])
            _add_by_column(by_distance, self.high - group.distances, slope)
            self._gather(total, u, by_distance, slice(None))
        for start, stop, base in group.runs or ():
            columns, there = self._columns(base, stop - start)
            shape = (len(u), self.tile, self.tile + stop - start - 1)
            by_distance = self.scratch.cleared("slope_by_distance", *shape, written=())
            _skewed(by_distance, stop - start).copy_(slope[..., start:stop])
            self._gather(total, u, by_distance[..., there], columns)
        put(self.to_query, step, total.add_(pick(self.to_query, step)) if self.share.again(group) else total)

    def _gather(self, total: Tensor, u: Tensor, by_distance: Tensor, columns: slice) -> None:
        relative, into = self.relative[:, columns], self.to_relative[:, columns]
        heads, unscaled = len(relative), 1 / LOG2E  # u carries log2(e)
        if heads == 1:
            rows = by_distance.flatten(0, 1)
            total.view(-1, u.shape[-1]).addmm_(rows, relative[0])
            into[0].addmm_(rows.T, u.flatten(0, 1), alpha=unscaled)
        else:
            by_head = by_distance.view(-1, heads, *by_distance.shape[1:])
            total += (by_head @ relative).flatten(0, 1)
            into += (by_head.mT @ u.view(-1, heads, *u.shape[1:])).sum(0) * unscaled


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


def _add_by_column(grad: Tensor, column: Int[Tensor, "tile lanes"], slope: Tensor) -> None:
    """The inverse of `_by_column`: add the slopes to their columns."""
    at = column.clamp(0, grad.shape[-1] - 1)
    slope = slope.masked_fill((column < 0) | (column >= grad.shape[-1]), 0)
    if grad.ndim == 2:
        grad.index_add_(1, at.flatten(), slope.flatten(1))
    else:
        grad.scatter_add_(-1, at.expand(len(grad), -1, -1), slope)
