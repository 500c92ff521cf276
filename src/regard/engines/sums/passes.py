"""The operands of the kernel operator, a span of rows at a time, and its forward passes; see `backward` for the others.

With v' = [v, 1], so that the normaliser is one more value column, and w_j the log weight of a key (the scale that its
feature map took out, decay, gates, -inf for padding), relative to a maximum m (SPEC 0.5). Without an order:

    S = sum_j exp(w_j - m) phi_k(k_j) v'_j^T,        y_i = phi_q(q_i) S

Causal, chunk by chunk:

    y_i = sum_{j <= i, same chunk} (phi_q(q_i) . phi_k(k_j)) exp(w_j - m_i) v'_j  +  exp(m - m_i) phi_q(q_i) S
    S  <- exp(m - m_end) S + sum_j exp(w_j - m_end) phi_k(k_j) v'_j^T

where m_i is the running maximum over j <= i: one over a whole chunk would let a later key change the rounding of an
earlier row. Only the second line is a recurrence; all else is made for the chunks of a span together, chunks in front
of rows so that the state of each chunk lies in one piece.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.core.attention import accumulation_dtype
from regard.core.compiling import exporting, known_within
from regard.core.errors import UnsupportedError
from regard.features.maps import LOG2E, FeatureMap

CHUNK = 64
SPAN = 8
"""chunks that are worked on at once; the forward pass keeps one state per span for the backward pass"""
BUFFER_BYTES = 1 << 22
"""of the features of one span on a CPU, which stay in its cache"""
DEVICE_BUFFER_BYTES = 1 << 28
LOWEST = -1e30
"""stands for a running maximum of -inf (no key yet), whose differences would be NaN"""


class Span(NamedTuple):
    """Slots `first` to `end`, in chunks of one width."""

    first: int
    end: int
    width: int

    @property
    def chunks(self) -> int:
        return (self.end - self.first) // self.width

    def __sub__(self, slots: int) -> "Span":
        return Span(self.first - slots, self.end - slots, self.width)

    def of(self, x: Tensor, axis: int = 1) -> Tensor:
        """A view of these slots of an axis: (rows, ..., length, ...) as (chunks, rows, ..., width, ...)."""
        return x.narrow(axis, self.first, self.end - self.first).unflatten(axis, (-1, self.width)).movedim(axis, 0)


def spans(first: int, end: int) -> list[Span]:
    """Whole chunks, at most SPAN at a time; what remains is a span of one chunk."""
    whole = end - (end - first) % CHUNK
    full = [Span(a, min(a + SPAN * CHUNK, whole), CHUNK) for a in range(first, whole, SPAN * CHUNK)]
    return [*full, Span(whole, end, end - whole)] if whole < end else full


def count_spans(length: int) -> int:
    """len(spans(0, length)), for lengths that a compiler has not fixed."""
    return -(-(length // CHUNK) // SPAN) - (-(length % CHUNK) // CHUNK)


def learning(*tensors: Tensor | None) -> bool:
    """Whether the backward pass will need what a causal forward pass may keep for it.

    An exported graph keeps nothing: how much there is depends on the length, by a formula that no exporter bounds.
    """
    if exporting():
        return False
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def require_kept(kept: Tensor) -> None:
    """Refuse the backward pass of a causal call that kept nothing for it.

    Raises:
        UnsupportedError: it was exported, or mapped by `torch.func.vmap`, which hides that a gradient is wanted.
    """
    if not kept.shape[0]:
        raise UnsupportedError(
            "a causal sum keeps nothing for a backward pass under torch.export and torch.func.vmap: train before the "
            "export, and call it for each element instead of vmap"
        )


def pieces(length: int) -> list[Span]:
    """Spans of one chunk each, for sums without an order."""
    return [
        Span(a, min(a + SPAN * CHUNK, length), min(SPAN * CHUNK, length - a)) for a in range(0, length, SPAN * CHUNK)
    ]


class Features(NamedTuple):
    x: Tensor
    """(chunks * rows, any, dim)"""
    plain: Tensor
    """(chunks * rows, any, features): before the rotation"""
    turned: Tensor
    log: Tensor | None
    """(chunks * rows, any): what the map took out"""


@dataclass(frozen=True)
class Operands:
    """The inputs of a call (or some of its rows). A row is one head of keys and values of one batch element."""

    q: Tensor
    """(rows, group, queries, dim)"""
    k: Tensor
    """(rows, keys, dim)"""
    v: Tensor
    projection: Tensor | None
    """(kv_heads, features or half, dim); of some rows: theirs, once for each chunk of a span"""
    log_weight: Tensor | None
    """(rows, keys)"""
    real: Tensor | None
    """(rows, keys)"""
    rotation: Tensor | None
    """(2, keys, features / 2): cosines and sines"""
    query_map: FeatureMap
    key_map: FeatureMap
    scale: float
    normalise: bool
    causal: bool

    @property
    def dtype(self) -> torch.dtype:
        return accumulation_dtype(self.q.dtype)

    @property
    def weighted(self) -> bool:
        return self.log_weight is not None or self.key_map.log_scale

    @property
    def group(self) -> int:
        return self.q.shape[1]

    @property
    def past(self) -> int:
        """Keys before the first query."""
        return self.k.shape[1] - self.q.shape[2]

    def split(self, features: int) -> "Iterator[tuple[slice, Operands]]":
        """The rows in parts whose features of one span fill a buffer."""
        rows = self.k.shape[0]
        span = min(SPAN * CHUNK, self.k.shape[1])
        bytes_per_row = span * features * (1 + self.group) * self.dtype.itemsize
        buffer = BUFFER_BYTES if self.q.device.type == "cpu" else DEVICE_BUFFER_BYTES
        count = min(rows, -(-rows * bytes_per_row // buffer))
        size = -(-rows // max(count, 1))
        for start in range(0, rows, max(size, 1)):
            part = slice(start, min(start + size, rows))
            yield part, self._rows(part)

    def _rows(self, part: slice) -> "Operands":
        projection = self.projection
        if projection is not None:
            heads = torch.arange(part.start, part.stop, device=projection.device) % projection.shape[0]
            chunks = min(SPAN, -(-self.k.shape[1] // CHUNK)) if self.causal else 1
            projection = projection[heads.repeat(chunks)].to(self.dtype)
        log_weight, real = (None if x is None else x[part] for x in (self.log_weight, self.real))
        q, k, v = self.q[part], self.k[part], self.v[part]
        return replace(self, q=q, k=k, v=v, projection=projection, log_weight=log_weight, real=real)

    def spans(self) -> list[Span]:
        """Spans of the keys; those before the first query apart."""
        return [*spans(0, self.past), *spans(self.past, self.k.shape[1])]

    def queries(self, span: Span, at: Span) -> Features:
        """Features of a span of queries, which are `at` these slots of the keys."""
        return self._features(self.query_map, span.of(self.q, 2), at)

    def keys(self, span: Span) -> Features:
        return self._features(self.key_map, span.of(self.k), span)

    def _features(self, map_: FeatureMap, x: Tensor, at: Span) -> Features:
        x = x.reshape(x.shape[0] * x.shape[1], -1, x.shape[-1]).to(self.dtype)
        x = x if self.scale == 1 else x * self.scale
        plain, log = map_.scaled(x, self.projection_of(x))
        return Features(x, plain, self.turn(plain, at), log)

    def projection_of(self, x: Tensor) -> Tensor | None:
        return None if self.projection is None else self.projection[: x.shape[0]]

    def turn(self, features: Tensor, at: Span, direction: int = 1) -> Tensor:
        """Rotate features by the angles of their slots (back: `direction` -1)."""
        if self.rotation is None:
            return features
        rotation = self.rotation[:, at.first : at.end].unflatten(1, (-1, 1, at.width))
        split = features.unflatten(1, (-1, at.width)).unflatten(0, (rotation.shape[1], -1))
        return turned(split, rotation[:, :, None], direction).view_as(features)

    def log_weights(self, keys: Features, span: Span) -> Tensor | None:
        """(chunks, rows, width)"""
        if not self.weighted:
            return None
        log = None if keys.log is None else keys.log.view(-1, self.k.shape[0], span.width)
        if self.log_weight is not None:
            weight = span.of(self.log_weight)
            log = weight if log is None else log + weight
        assert log is not None
        return log if self.real is None else log.masked_fill(~span.of(self.real), float("-inf"))

    def columns(self, span: Span) -> Tensor:
        """Values of a span and the column of the normaliser, which is 0 at padding: exact removal."""
        v = span.of(self.v)
        columns = torch.empty(*v.shape[:3], v.shape[3] + 1, dtype=self.dtype, device=v.device)
        columns[..., :-1] = v
        columns[..., -1] = 1 if self.real is None else span.of(self.real)
        return columns.flatten(0, 1)


class Results(NamedTuple):
    values: Tensor
    """(rows, group, queries, value)"""
    total: Tensor
    """(rows, group, queries): the normaliser, divided by exp(highest)"""
    highest: Tensor
    """(rows, group, queries), or empty where nothing has a log weight"""
    sum: Tensor
    """(rows, features, value + 1): sum_j exp(w_j - top) phi(k_j) [v_j, 1]^T"""
    top: Tensor
    """(rows,): the largest log weight so far, or empty"""
    kept_sum: Tensor
    """(spans, rows, value + 1, features): passes hold states transposed, in which products are faster by a fifth"""
    kept_top: Tensor

    def of(self, part: slice) -> "Results":
        """The same of some rows."""
        values, total, highest, sum, top = (x[part] for x in self[:5])
        return Results(values, total, highest, sum, top, self.kept_sum[:, part], self.kept_top[:, part])


def empty_sum(k: Tensor, v: Tensor, key_map: FeatureMap, rows: int = 0) -> Tensor:
    """The state before the first key, (batch, kv_heads, features, value + 1); `rows`: of the projection."""
    features = key_map.count(k.shape[3], rows)
    return k.new_zeros(*k.shape[:2], features, v.shape[3] + 1, dtype=accumulation_dtype(k.dtype))


def turned(features: Tensor, rotation: Tensor | None, direction: int = 1) -> Tensor:
    """Turn neighbouring pairs of features: (..., slots, features) by (2, slots, features / 2)."""
    if rotation is None:
        return features
    cos, sin = rotation.to(features.dtype)
    even, odd = features.unflatten(-1, (-1, 2)).unbind(-1)
    sin = sin * direction
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


def grouped(x: Tensor, group: int) -> Tensor:
    """(rows, group * c, any) seen as (rows, group, c, any)."""
    return x.unflatten(1, (group, -1))


def weightless(total: Tensor) -> Tensor:
    """Rows without weight: none, or so little that its reciprocal in a sum of gradients leaves the type.

    In float32 below 1e-34. There is no epsilon.
    """
    return total.abs() < _least(total.dtype)


def _least(dtype: torch.dtype) -> float:
    return 2**13 * torch.finfo(dtype).tiny


def divisor(total: Tensor) -> Tensor:
    """Rows without weight divide by infinity: value 0, gradient 0. Of a sum that left the type nothing is known."""
    if known_within(total, _least(total.dtype), torch.finfo(total.dtype).max):
        return total
    return total.masked_fill(total.isinf(), float("nan")).masked_fill(weightless(total), float("inf"))


class Scales(NamedTuple):
    """Log weights of a span as factors of at most 1."""

    pair: Tensor
    """(chunks * rows, c, c): exp(w_j - m_i) where j <= i, else 0"""
    row: Tensor
    """(chunks * rows, c, 1): exp(m - m_i), for what came before the chunk"""
    key: Tensor
    """(chunks * rows, c, 1): exp(w_j - m_end)"""
    carry: Tensor
    """(chunks, rows, 1, 1): exp(m - m_end)"""
    running: Tensor
    """(chunks, rows, c): m_i"""


def scales(log: Tensor, top: Tensor, dtype: torch.dtype) -> Scales:
    within = log.cummax(-1).values
    ends = torch.cat([top[None], within[..., -1]]).cummax(0).values
    start, end = ends[:-1, :, None], ends[1:, :, None].clamp_min(LOWEST)
    running = torch.maximum(within, start)
    safe = running.clamp_min(LOWEST)
    pair = (log[..., None, :] - safe[..., None]).to(dtype).mul_(LOG2E).clamp_max_(0).exp2_().tril_()
    return Scales(
        pair.flatten(0, 1),
        (start - safe).to(dtype).exp().flatten(0, 1)[..., None],
        (log - end).to(dtype).exp().flatten(0, 1)[..., None],
        (start - end).to(dtype).exp()[..., None],
        running,
    )


def carried(before: Tensor, s: Scales | None, chunk: int, into: Tensor) -> Tensor:
    """A state (or the gradient of one) across a chunk, without what the chunk adds."""
    return into.copy_(before) if s is None else torch.mul(before, s.carry[chunk], out=into)


def forward_causal(x: Operands, out: Results, part: slice, state: Tensor, top: Tensor | None) -> None:
    rows = state.shape[0]
    states = state.new_empty(SPAN + 1, *state.shape)
    states[0] = state
    each = states.unbind()
    pair = y = state.new_empty(0)  # written over by every span: unlike new memory, it stays in the cache
    for index, span in enumerate(x.spans()):
        if out.kept_sum.numel():
            out.kept_sum[index, part] = states[0]
            if top is not None:
                out.kept_top[index, part] = top
        keys, v = x.keys(span), x.columns(span)
        fk, log = keys.turned, x.log_weights(keys, span)
        s = None if log is None or top is None else scales(log, top, x.dtype)
        scaled = v if s is None else v * s.key
        for i, (a, b) in enumerate(zip(scaled.mT.split(rows), fk.split(rows), strict=True)):
            carried(each[i], s, i, each[i + 1]).baddbmm_(a, b)
        if span.first >= x.past:
            queries = x.queries(span - x.past, span)
            before = states[: span.chunks].flatten(0, 1)
            fits = pair.shape[:2] == queries.turned.shape[:2]
            pair = torch.bmm(queries.turned, fk.mT, out=pair if fits else None)
            y = torch.bmm(queries.turned, before.mT, out=y if fits else None)
            if s is None:
                grouped(pair, x.group).tril_()
            else:
                grouped(pair, x.group).mul_(s.pair[:, None])
                grouped(y, x.group).mul_(s.row[:, None])
            running = None if s is None else s.running[:, :, None]
            write(x, out, part, y.baddbmm_(pair, v), queries.log, running, span - x.past)
        states[0] = states[span.chunks]
        top = None if s is None else s.running[-1, :, -1]
    out.sum[part] = states[0].mT
    if top is not None:
        out.top[part] = top


def forward_full(x: Operands, out: Results, part: slice, state: Tensor, top: Tensor | None) -> None:
    for span in pieces(x.k.shape[1]):
        keys, v = x.keys(span), x.columns(span)
        log = x.log_weights(keys, span)
        if log is not None and top is not None:
            new = torch.maximum(top, log[0].amax(1))
            safe = new.clamp_min(LOWEST)
            state.mul_((top - safe).to(x.dtype).exp()[:, None, None])
            v.mul_((log[0] - safe[:, None]).to(x.dtype).exp()[..., None])
            top = new
        state.baddbmm_(v.mT, keys.turned)
    out.sum[part] = state.mT
    if top is not None:
        out.top[part] = top
    for span in pieces(x.q.shape[2]):
        queries = x.queries(span, span)
        y = torch.bmm(queries.turned, state.mT)
        write(x, out, part, y, queries.log, None if top is None else top[None, :, None, None], span)


def write(
    x: Operands, out: Results, part: slice, y: Tensor, log: Tensor | None, top: Tensor | None, span: Span
) -> None:
    """Normalise a span of rows and store it, its totals and their scales; `top` (chunks, rows, 1, any)."""
    place, total = span.of(out.values[part], 2), span.of(out.total[part], 2)
    y = y.view(*place.shape[:-1], -1)
    values = y[..., :-1]
    total.copy_(y[..., -1])
    if not x.normalise:
        place.copy_(values)
    elif place.dtype == x.dtype:
        torch.div(values, divisor(total)[..., None], out=place)
    else:
        place.copy_(values / divisor(total)[..., None])
    if top is not None:
        span.of(out.highest[part], 2).copy_(top if log is None else top + log.view(total.shape))
