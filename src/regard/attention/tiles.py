"""Attention over the tiles of a pattern: one operator with a hand-written backward, in buffers of about 1 MiB.

For each query tile the scores of its key tiles are computed, masked, exponentiated and summed (all in base 2, whose
exponential is the cheaper one), and forgotten; the backward computes them again from the log-sum-exp. Nothing of
queries x keys exists, and `torch.compile` sees one node whatever the length.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention.layout import BUDGET, Group, Layout, Places, Step, find_layout
from regard.bias import ScoreBias
from regard.masks import Pattern, resolve

__all__ = ["plain", "tiled"]

LOG2E = 1 / math.log(2)
LOWEST = -1e30
"""Stands for -inf where -inf - -inf must not be NaN."""
WHOLE = 256
"""Up to this many queries and keys, one tile holds everything."""


def tiled(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    pattern: Pattern,
    *,
    scale: float | None = None,
    query_positions: Int[Tensor, " queries"] | int | None = None,
    key_positions: Int[Tensor, " keys"] | int = 0,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    bias: ScoreBias | None = None,
    whole: int = WHOLE,
) -> tuple[Float[Tensor, "batch heads queries value"], Float[Tensor, "batch heads queries"]]:
    """Softmax attention over the pairs of a pattern.

    Args:
        q, k, v: heads of keys and values may be fewer (grouped); keys and values under the mask must be finite.
        pattern: which pairs attend, including causality.
        scale: of the logits; None: 1 / sqrt(dim).
        query_positions: one per query, or the first of consecutive ones; None: the queries are the last of
            consecutive keys.
        key_positions: one per key, or the first of consecutive ones.
        key_mask: True = keep.
        bias: added to the logits. Its `table` needs a tensor of queries x keys here too.
        whole: up to this many queries and keys, one tile holds everything.

    Returns:
        (values, lse), both differentiable. A query without keys has value 0 and lse -inf. lse has the dtype of the
        arithmetic (float32 for 16-bit inputs).
    """
    queries, keys = q.shape[2], k.shape[2]
    scale = q.shape[3] ** -0.5 if scale is None else scale
    if query_positions is None:
        last = key_positions[-1] + 1 if isinstance(key_positions, Tensor) else key_positions + keys
        query_positions = last - queries if isinstance(last, int) else last - queries + torch.arange(queries)
    if bias is not None and bias.table is not None:
        i = _explicit(query_positions, queries, q.device)
        j = _explicit(key_positions, keys, q.device)
        allowed = pattern.mask(i, j)
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, :]
        return plain(q, k, v, allowed, scale=scale, bias=bias.logits(i, j))
    dtype = torch.promote_types(q.dtype, torch.float32)
    curve = query = relative = None
    if bias is not None and bias.curve is not None:
        curve = bias.curve.to(dtype).expand(q.shape[1], -1)
    if bias is not None and bias.query is not None and bias.relative is not None:
        query = bias.query.to(dtype).expand(*q.shape[:3], -1)
        relative = bias.relative.to(dtype).expand(q.shape[1], -1, -1)
    given_queries = query_positions if isinstance(query_positions, Tensor) else None
    given_keys = key_positions if isinstance(key_positions, Tensor) else None
    values, lse = _tiles(
        q.to(dtype),
        k.to(dtype),
        v.to(dtype),
        key_mask,
        curve,
        query,
        relative,
        given_queries,
        given_keys,
        0 if isinstance(query_positions, Tensor) else query_positions,
        0 if isinstance(key_positions, Tensor) else key_positions,
        pattern.text,
        scale,
        0 if bias is None else bias.high,
        whole,
    )
    return values.to(v.dtype), lse


def plain(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    allowed: Bool[Tensor, "*#pairs queries keys"] | None = None,
    *,
    scale: float,
    bias: Float[Tensor, "*#pairs queries keys"] | None = None,
) -> tuple[Float[Tensor, "batch heads queries value"], Float[Tensor, "batch heads queries"]]:
    """The same as `tiled` from an explicit mask: for a few queries, or a bias that is a table already.

    Args:
        q, k, v: heads of keys and values may be fewer (grouped).
        allowed: True = keep, broadcast over (batch, heads); None: every pair.
        scale: of the logits.
        bias: added to the logits, broadcast over (batch, heads).
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    batch, heads, queries, dim = q.shape
    grouped = q.to(dtype).reshape(batch, k.shape[1], -1, dim)  # the heads that share keys, one after another
    scores = (grouped @ k.to(dtype).mT * scale).view(batch, heads, queries, -1)
    if bias is not None:
        scores = scores + bias.to(dtype)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    highest = scores.detach().amax(-1, keepdim=True).clamp_min(LOWEST)
    weights = torch.exp(scores - highest)
    total = weights.sum(-1, keepdim=True)
    safe = torch.where(total == 0, 1.0, total)
    weights = (weights / safe).reshape(batch, k.shape[1], -1, k.shape[2])
    values = (weights @ v.to(dtype)).reshape(batch, heads, queries, -1)
    lse = torch.where(total == 0, float("-inf"), torch.log(safe) + highest)
    return values.to(v.dtype), lse.squeeze(-1)


def _explicit(positions: Tensor | int, length: int, device: torch.device) -> Tensor:
    if isinstance(positions, Tensor):
        return positions.to(device)
    return torch.arange(positions, positions + length, device=device)


class _Cursor:
    """What is computed at once: some query tiles of one head, or (where one tile is everything) several heads."""

    def __init__(self, call: "_Call", group: Group, step: Step, rows: slice, heads: slice) -> None:
        self.call, self.group, self.step, self.rows, self.heads = call, group, step, rows, heads
        share = call.share
        self.kv = slice(heads.start // share, (heads.stop - 1) // share + 1)
        self.spread = (heads.stop - heads.start) // (self.kv.stop - self.kv.start)  # query heads on each of those
        self.lanes = group.slots * call.layout.key_tile

    def queries(self, x: Tensor) -> Float[Tensor, "together tile dim"]:
        """The query tiles of x (batch, heads, length, dim)."""
        if self.call.layout.whole:
            return x[self.rows, self.heads].flatten(0, 1)
        tiles = self._tiles(x)
        if self.step.row is not None:
            return tiles[self.step.row : self.step.row + self.step.count]
        return tiles.index_select(0, self.step.rows)

    def put(self, x: Tensor, new: Tensor) -> None:
        """Write query tiles."""
        if self.call.layout.whole:
            x[self.rows, self.heads] = new.view(-1, self.heads.stop - self.heads.start, *new.shape[1:])
        elif self.step.row is not None:
            self._tiles(x)[self.step.row : self.step.row + self.step.count] = new
        else:
            self._tiles(x).index_copy_(0, self.step.rows, new)

    def _tiles(self, x: Tensor) -> Tensor:
        return x[self.rows.start, self.heads.start].view(-1, self.call.layout.query_tile, x.shape[-1])

    def keys(self, x: Tensor) -> Float[Tensor, "together lanes dim"]:
        """The key tiles of x (batch, kv_heads, length, dim); overlapping runs are views."""
        if self.call.layout.whole:
            return x[self.rows, self.kv].unsqueeze(2).expand(-1, -1, self.spread, -1, -1).flatten(0, 2)
        x, step, size = x[self.rows.start, self.kv.start], self.step, self.call.layout.key_tile
        dim = x.shape[-1]
        if step.key is not None:
            shape, strides = (step.count, self.lanes, dim), (step.advance * size * dim, dim, 1)
            return x.as_strided(shape, strides, x.storage_offset() + step.key * size * dim)
        return x.view(-1, size * dim).index_select(0, step.keys).view(step.count, self.lanes, dim)

    def add_keys(self, x: Tensor, new: Tensor) -> None:
        """Add to key tiles; those that several query tiles see receive several terms."""
        step, size, dim = self.step, self.call.layout.key_tile, x.shape[-1]
        if self.call.layout.whole:
            x[self.rows, self.kv] += new.view(-1, self.kv.stop - self.kv.start, self.spread, *new.shape[1:]).sum(2)
            return
        tiles = x[self.rows.start, self.kv.start].view(-1, size, dim)
        if step.key is None:
            tiles.view(-1, size * dim).index_add_(0, step.keys, new.reshape(-1, size * dim))
        elif step.advance == 0:
            tiles[step.key : step.key + self.group.slots] += new.sum(0).view(-1, size, dim)
        else:
            by_slot = new.view(step.count, self.group.slots, size, dim)
            for slot in range(self.group.slots):
                tiles[step.key + slot : step.key + slot + step.count] += by_slot[:, slot]


class _Call:
    """One call of the operator: its operands in whole tiles, and the logits of a cursor."""

    def __init__(
        self,
        layout: Layout,
        q: Tensor,
        k: Tensor,
        key_mask: Tensor | None,
        curve: Tensor | None,
        query: Tensor | None,
        relative: Tensor | None,
        scale: float,
        high: int,
    ) -> None:
        self.layout, self.high = layout, high
        self.batch, self.heads, self.lengths = q.shape[0], q.shape[1], (q.shape[2], k.shape[2])
        self.share = self.heads // k.shape[1]
        self.k = self.by_key(k)
        self.scaled = self.by_query(q * (scale * LOG2E))
        self.curve = None if curve is None else curve * LOG2E
        self.relative = relative
        self.query = None if query is None else self.by_query(query * LOG2E)
        self.hidden: Tensor | None = None
        if key_mask is not None:
            hidden = torch.zeros(key_mask.shape, dtype=q.dtype, device=q.device).masked_fill_(~key_mask, -math.inf)
            self.hidden = self.by_key(hidden[:, None, :, None])
        self.buffers: dict[str, Tensor] = {}

    def by_query(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, -x.shape[2] % self.layout.query_tile)).contiguous()

    def by_key(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, -x.shape[2] % self.layout.key_tile)).contiguous()

    def buffer(self, name: str, *shape: int) -> Tensor:
        """Scratch memory, the same at every step."""
        size = math.prod(shape)
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = self.scaled.new_empty(size)
        return self.buffers[name][:size].view(shape)

    def sweep(self) -> Iterator[tuple[Group, list[tuple[slice, slice]]]]:
        """Every group, with the (batch rows, heads) to take at once."""
        heads = rows = 1
        if self.layout.whole:
            most = max(1, BUDGET // (self.layout.query_tile * self.layout.key_tile))
            whole_groups = [h for h in range(self.share, self.heads + 1, self.share) if self.heads % h == 0]
            heads = max((h for h in whole_groups if h <= most), default=1)
            rows = max(1, most // heads) if heads == self.heads else 1
        for group in self.layout.groups:
            yield (
                group,
                [
                    (slice(b, min(b + rows, self.batch)), slice(h, h + heads))
                    for b in range(0, self.batch, rows)
                    for h in range(0, self.heads, heads)
                ],
            )

    def added(self, group: Group, heads: slice) -> Tensor | None:
        """The masks and the curve of some heads as one (heads, 1, tile, lanes) tensor; None without a curve."""
        if self.curve is None:
            return None
        curve, tile = self.curve[heads], self.layout.query_tile
        total = curve.new_zeros(len(curve), 1, tile, group.slots * self.layout.key_tile)
        if group.distances is not None:
            total[:, 0] = _by_column(curve, self.high - group.distances)
        for start, stop, base in group.runs or ():
            low, high, left = self.columns(base, stop - start)
            width = tile + stop - start - 1
            row = F.pad(curve[:, low:high], (left, width - left - max(high - low, 0)))
            total[:, 0, :, start:stop] = row.unfold(-1, stop - start, 1).flip(-2)
        self.mask(total, group)
        return total

    def mask(self, scores: Tensor, group: Group) -> None:
        size = self.layout.key_tile
        for slot, mask in group.masks:
            scores[..., slot * size : slot * size + size] += mask

    def columns(self, base: int, lanes: int) -> tuple[int, int, int]:
        """Columns [low, high) of the bias that a run touches, and how many before them do not exist."""
        distances = (self.curve if self.relative is None else self.relative).shape[1]  # type: ignore[union-attr]
        width = self.layout.query_tile + lanes - 1
        begin = self.high - base - (self.layout.query_tile - 1)
        low = min(max(begin, 0), distances)
        high = max(min(begin + width, distances), low)
        return low, high, min(max(low - begin, 0), width)

    def logits(self, at: _Cursor, added: Tensor | None) -> Tensor:
        """log2(e) times the logits, masked: (together, tile, lanes)."""
        tile, group = self.layout.query_tile, at.group
        queries = at.queries(self.scaled)
        scores = self.buffer("scores", len(queries), tile, at.lanes)
        torch.bmm(queries, at.keys(self.k).mT, out=scores)
        shaped = scores.view(-1, at.heads.stop - at.heads.start, at.step.count, tile, at.lanes)
        if added is None:
            self.mask(shaped, group)
        else:
            shaped += added
        if self.relative is not None and self.query is not None:
            relative, u = self.relative_of(at), at.queries(self.query)
            if group.distances is not None:
                scores += _by_column(u @ relative.mT, self.high - group.distances)
            for start, stop, base in group.runs or ():
                low, high, left = self.columns(base, stop - start)
                width = tile + stop - start - 1
                by_distance = self.buffer("by_distance", len(u), tile, width)
                if high - low < width:
                    by_distance.zero_()
                by_distance[..., left : left + high - low] = u @ relative[:, low:high].mT
                scores[..., start:stop] += _skewed(by_distance, stop - start)
        if self.hidden is not None:
            lanes = self.hidden_of(at)
            shaped += lanes.view(-1, 1, at.step.count, 1, at.lanes)
        return scores

    def hidden_of(self, at: _Cursor) -> Tensor:
        one = _Cursor(self, at.group, at.step, at.rows, slice(0, 1))
        one.kv, one.spread = slice(0, 1), 1
        return one.keys(self.hidden)  # type: ignore[arg-type]

    def relative_of(self, at: _Cursor) -> Tensor:
        relative = self.relative[at.heads]  # type: ignore[index]
        return relative.repeat(at.rows.stop - at.rows.start, 1, 1) if self.layout.whole else relative

    def add_curve(self, grad: Tensor, at: _Cursor, slope: Tensor) -> None:
        """Add the gradient of the curve: the slopes of all pairs at one distance."""
        heads, group = at.heads, at.group
        by_head = slope.view(-1, heads.stop - heads.start, at.step.count, *slope.shape[1:]).sum((0, 2))
        if group.distances is not None:
            _add_by_column(grad[heads], self.high - group.distances, by_head)
        for start, stop, base in group.runs or ():
            low, high, left = self.columns(base, stop - start)
            by_distance = _unskewed(by_head[..., start:stop]).sum(-2)
            grad[heads, low:high] += by_distance[..., left : left + high - low]

    def add_relative(self, grad_query: Tensor, grad_relative: Tensor, at: _Cursor, slope: Tensor) -> None:
        """Add the gradients of query and relative, whose products are logits."""
        relative, u, heads = self.relative_of(at), at.queries(self.query), at.heads  # type: ignore[arg-type]
        total = torch.zeros_like(u)
        by_head = (-1, heads.stop - heads.start, at.step.count)
        for start, stop, base in at.group.runs or ():
            low, high, left = self.columns(base, stop - start)
            by_distance = _unskewed(slope[..., start:stop])[..., left : left + high - low]
            total += by_distance @ relative[:, low:high]
            products = (by_distance.mT @ u).view(*by_head, high - low, u.shape[-1])
            grad_relative[heads, low:high] += products.sum((0, 2)) / LOG2E  # u carries log2(e)
        if at.group.distances is not None:
            columns = self.high - at.group.distances
            by_distance = slope.new_zeros(*slope.shape[:2], relative.shape[1])
            _add_by_column(by_distance, columns, slope)
            total += by_distance @ relative
            products = (by_distance.mT @ u).view(*by_head, *relative.shape[1:])
            grad_relative[heads] += products.sum((0, 2)) / LOG2E
        at.put(grad_query, at.queries(grad_query) + total if at.group.again else total)


def _unskewed(scores: Tensor) -> Tensor:
    """The inverse of `_skewed`: (..., tile, lanes) -> (..., tile, tile + lanes - 1), 0 elsewhere."""
    by_distance = scores.new_zeros(*scores.shape[:-1], scores.shape[-2] + scores.shape[-1] - 1)
    _skewed(by_distance, scores.shape[-1]).copy_(scores)
    return by_distance


def _add_by_column(grad: Tensor, column: Tensor, slope: Tensor) -> None:
    """The inverse of `_by_column`: add the slopes (count, tile, lanes) to their columns."""
    inside = (column >= 0) & (column < grad.shape[-1])
    at = column.clamp(0, grad.shape[-1] - 1)
    slope = slope.masked_fill(~inside, 0)
    if grad.ndim == 2:
        grad.index_add_(1, at.flatten(), slope.flatten(1))
    else:
        grad.scatter_add_(-1, at.expand(len(grad), -1, -1), slope)


def _skewed(by_distance: Tensor, lanes: int) -> Tensor:
    """A view (..., tile, lanes) of (..., tile, tile + lanes - 1): out[a, b] = in[a, tile - 1 - a + b]."""
    tile, strides = by_distance.shape[-2], by_distance.stride()
    shape = (*by_distance.shape[:-1], lanes)
    offset = by_distance.storage_offset() + tile - 1
    return by_distance.as_strided(shape, (*strides[:-2], strides[-2] - 1, 1), offset)


def _by_column(x: Tensor, column: Tensor) -> Tensor:
    """x (..., tile or none, columns) at the columns (tile, lanes); 0 where there is no such column."""
    inside = (column >= 0) & (column < x.shape[-1])
    at = column.clamp(0, x.shape[-1] - 1)
    picked = x[..., at] if x.ndim == 2 else x.gather(-1, at.expand(len(x), -1, -1))
    return picked.masked_fill(~inside, 0)


@torch.library.custom_op("regard::tiles", mutates_args=())
def _tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    curve: Tensor | None,
    query: Tensor | None,
    relative: Tensor | None,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    query_start: int,
    key_start: int,
    rule: str,
    scale: float,
    high: int,
    whole: int,
) -> tuple[Tensor, Tensor]:
    """Values (batch, heads, queries, value) and log-sum-exp (batch, heads, queries)."""
    queries, keys = Places(query_start, q.shape[2], query_positions), Places(key_start, k.shape[2], key_positions)
    biased = curve is not None or relative is not None
    layout = find_layout(rule, queries, keys, whole=whole, biased=biased, device=q.device, dtype=q.dtype)
    call = _Call(layout, q, k, key_mask, curve, query, relative, scale, high)
    v = call.by_key(v)
    length = q.shape[2] + -q.shape[2] % layout.query_tile
    values = q.new_zeros(*q.shape[:2], length, v.shape[3])
    lse = q.new_full((*q.shape[:2], length, 1), -math.inf)
    for group, shares in call.sweep():
        for rows, heads in shares:
            added = call.added(group, heads)
            for step in group.steps:
                at = _Cursor(call, group, step, rows, heads)
                scores = call.logits(at, added)
                highest = scores.amax(-1, keepdim=True).clamp_min_(LOWEST)
                weights = scores.sub_(highest).exp2_()
                total = weights.sum(-1, keepdim=True)
                part = torch.bmm(weights, at.keys(v)).div_(total.clamp_min(1e-30))
                level = total.log2_().add_(highest)
                if group.again:
                    part, level = _merged(at.queries(values), at.queries(lse), part, level)
                at.put(values, part)
                at.put(lse, level)
    count = q.shape[2]
    return values[:, :, :count].contiguous(), (lse[:, :, :count, 0] / LOG2E).contiguous()


def _merged(values: Tensor, lse: Tensor, part: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Two parts over disjoint keys as one, in base 2."""
    both = torch.logaddexp2(lse, level)
    safe = both.clamp_min(LOWEST)
    return values * (lse - safe).exp2_() + part * (level - safe).exp2_(), both


@_tiles.register_fake
def _(q, k, v, *_rest):  # noqa: ANN001, ANN002, ANN202
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3])


@torch.library.custom_op("regard::tiles_backward", mutates_args=())
def _tiles_backward(
    grad_values: Tensor,
    grad_lse: Tensor,
    values: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    curve: Tensor | None,
    query: Tensor | None,
    relative: Tensor | None,
    query_positions: Tensor | None,
    key_positions: Tensor | None,
    query_start: int,
    key_start: int,
    rule: str,
    scale: float,
    high: int,
    whole: int,
    curve_learns: bool,
    relative_learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, curve, query, relative; empty where nothing learns."""
    queries, keys = Places(query_start, q.shape[2], query_positions), Places(key_start, k.shape[2], key_positions)
    biased = curve is not None or relative is not None
    layout = find_layout(rule, queries, keys, whole=whole, biased=biased, device=q.device, dtype=q.dtype)
    call = _Call(layout, q, k, key_mask, curve, query, relative, scale, high)
    empty = lse.isinf()
    # d loss / d logit = p (grad . v - delta): the softmax takes away the average of grad . v, the lse adds its own grad.
    delta = (grad_values * values).sum(-1, keepdim=True) - grad_lse.masked_fill(empty, 0)[..., None]
    delta = call.by_query(delta)
    level = call.by_query((lse * LOG2E).masked_fill(empty, LOWEST)[..., None])
    q, v, grad_values = call.by_query(q), call.by_key(v), call.by_query(grad_values)
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(call.k), torch.zeros_like(v)
    dcurve = torch.zeros_like(curve) if curve is not None and curve_learns else q.new_empty(0)
    learns = query is not None and relative is not None and relative_learns
    dquery = torch.zeros_like(call.query) if learns else q.new_empty(0)
    drelative = torch.zeros_like(relative) if learns else q.new_empty(0)
    for group, shares in call.sweep():
        for rows, heads in shares:
            added = call.added(group, heads)
            for step in group.steps:
                at = _Cursor(call, group, step, rows, heads)
                weights = call.logits(at, added).sub_(at.queries(level)).exp2_()
                outer = at.queries(grad_values)
                at.add_keys(dv, torch.bmm(weights.mT, outer))
                slope = torch.bmm(outer, at.keys(v).mT, out=call.buffer("slope", *weights.shape))
                slope.sub_(at.queries(delta)).mul_(weights)
                new = torch.bmm(slope, at.keys(call.k))
                at.put(dq, at.queries(dq) + new if group.again else new)
                at.add_keys(dk, torch.bmm(slope.mT, at.queries(q)))
                if curve_learns and curve is not None:
                    call.add_curve(dcurve, at, slope)
                if learns:
                    call.add_relative(dquery, drelative, at, slope)
    n, m = call.lengths
    dquery = dquery[:, :, :n] if learns else dquery
    grads = dq.mul_(scale)[:, :, :n], dk.mul_(scale)[:, :, :m], dv[:, :, :m], dcurve, dquery, drelative
    return tuple(x.contiguous() for x in grads)  # type: ignore[return-value]


@_tiles_backward.register_fake
def _(
    grad_values,
    grad_lse,
    values,
    lse,
    q,
    k,
    v,
    key_mask,
    curve,
    query,
    relative,
    *rest,  # noqa: ANN001
):  # noqa: ANN202
    curve_learns, relative_learns = rest[-2:]
    return (
        *(x.new_empty(x.shape) for x in (q, k, v)),
        *(
            x.new_empty(x.shape) if x is not None and learns else q.new_empty(0)
            for x, learns in ((curve, curve_learns), (query, relative_learns), (relative, relative_learns))
        ),
    )


def _setup(ctx, inputs, output) -> None:  # noqa: ANN001
    tensors, ctx.rest = inputs[:9], inputs[9:]
    ctx.save_for_backward(*output, *tensors)
    ctx.pattern = resolve(inputs[11])  # a pattern made from a function must live until the backward


def _backward(ctx, grad_values, grad_lse):  # noqa: ANN001, ANN202
    needs = ctx.needs_input_grad
    learns = needs[4], needs[5] or needs[6]
    dq, dk, dv, dcurve, dquery, drelative = _tiles_backward(
        grad_values, grad_lse, *ctx.saved_tensors, *ctx.rest, *learns
    )
    biases = dcurve if learns[0] else None, dquery if learns[1] else None, drelative if learns[1] else None
    return dq, dk, dv, None, *biases, *(None,) * 8


_tiles.register_autograd(_backward, setup_context=_setup)
