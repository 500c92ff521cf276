"""What the passes of the kernel operator (`engine`) share, and those without an order; the causal ones: `causal`.

With v' = [v, 1], so that the normaliser is one more value column, and w_j the log weight of a key (the scale that its
feature map took out, decay, gates, -inf for padding), relative to the largest one m (SPEC 0.5):

    S = sum_j exp(w_j - m) phi_k(k_j) v'_j^T,        y_i = phi_q(q_i) S
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.features import FeatureMap

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


class Features(NamedTuple):
    x: Tensor
    """(chunks * rows, any, dim)"""
    plain: Tensor
    """(chunks * rows, any, features): before the rotation"""
    turned: Tensor
    log: Tensor | None
    """(chunks * rows, any): what the map took out"""


@dataclass(frozen=True)
class Call:
    """The inputs of one call (or some of its rows). A row is one head of keys and values of one batch element."""

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
        return accumulator(self.q.dtype)

    @property
    def weighted(self) -> bool:
        return self.log_weight is not None or has_log_scale(self.key_map)

    @property
    def group(self) -> int:
        return self.q.shape[1]

    def split(self, features: int) -> Iterator[tuple[slice, "Call"]]:
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

    def _rows(self, part: slice) -> "Call":
        projection = self.projection
        if projection is not None:
            heads = torch.arange(part.start, part.stop, device=projection.device) % projection.shape[0]
            chunks = min(SPAN, -(-self.k.shape[1] // CHUNK)) if self.causal else 1
            projection = projection[heads.repeat(chunks)].to(self.dtype)
        return replace(
            self,
            q=self.q[part],
            k=self.k[part],
            v=self.v[part],
            projection=projection,
            log_weight=None if self.log_weight is None else self.log_weight[part],
            real=None if self.real is None else self.real[part],
        )

    def spans(self) -> list[Span]:
        """Spans of the keys; those before the first query apart."""
        keys = self.k.shape[1]
        past = keys - self.q.shape[2]
        return [*spans(0, past), *spans(past, keys)]

    def queries(self, span: Span, at: Span) -> Features:
        """Features of a span of queries, which are `at` these slots of the keys."""
        return self._features(self.query_map, span.of(self.q, 2), at)

    def keys(self, span: Span) -> Features:
        return self._features(self.key_map, span.of(self.k), span)

    def _features(self, map_: FeatureMap, x: Tensor, at: Span) -> Features:
        x = x.reshape(x.shape[0] * x.shape[1], -1, x.shape[-1]).to(self.dtype)
        x = x if self.scale == 1 else x * self.scale
        plain, log = map_.scaled(x, self._projection(x))
        return Features(x, plain, self._turn(plain, at), log)

    def _projection(self, x: Tensor) -> Tensor | None:
        return None if self.projection is None else self.projection[: x.shape[0]]

    def _turn(self, features: Tensor, at: Span, direction: int = 1) -> Tensor:
        """Rotate features by the angles of their slots (back: `direction` -1)."""
        if self.rotation is None:
            return features
        rotation = self.rotation[:, at.first : at.end].unflatten(1, (-1, 1, at.width))
        split = features.unflatten(1, (-1, at.width)).unflatten(0, (rotation.shape[1], -1))
        return turned(split, rotation[:, :, None], direction).view_as(features)

    def pull(self, map_: FeatureMap, gradient: Tensor, f: Features, at: Span, into: Tensor) -> None:
        """Store the gradient of a span of queries or keys; that of their features may be overwritten."""
        gradient = map_.pull(self._turn(gradient, at, -1), f.plain, f.x, self._projection(f.x))
        into.copy_((gradient if self.scale == 1 else gradient * self.scale).view(into.shape))

    def log_weights(self, keys: Features, span: Span) -> Tensor | None:
        """(chunks, rows, width)"""
        if not self.weighted:
            return None
        log = None if keys.log is None else keys.log.view(-1, self.k.shape[0], span.width)
        if self.log_weight is not None:
            given = span.of(self.log_weight)
            log = given if log is None else log + given
        assert log is not None
        return log if self.real is None else log.masked_fill(~span.of(self.real), float("-inf"))

    def columns(self, span: Span) -> Tensor:
        """Values of a span and the column of the normaliser, which is 0 at padding: exact removal."""
        v = span.of(self.v)
        columns = torch.empty(*v.shape[:3], v.shape[3] + 1, dtype=self.dtype, device=v.device)
        columns[..., :-1] = v
        columns[..., -1] = 1 if self.real is None else span.of(self.real)
        return columns.flatten(0, 1)

    def store_values(self, of_v: Tensor, v: Tensor, into: "Gradients", span: Span) -> None:
        """Store the gradients of a span's values, 0 at padding, and of its log weights."""
        if into.log_weight.numel():
            place = span.of(into.log_weight)
            place.copy_((v * of_v).sum(-1).view(place.shape))
        place = span.of(into.v)
        of_v = of_v[..., :-1].unflatten(0, place.shape[:2])
        place.copy_(of_v if self.real is None else of_v * span.of(self.real)[..., None])


def spans(first: int, end: int) -> list[Span]:
    """Whole chunks, at most SPAN at a time; what remains is a span of one chunk."""
    whole = end - (end - first) % CHUNK
    found = [Span(a, min(a + SPAN * CHUNK, whole), CHUNK) for a in range(first, whole, SPAN * CHUNK)]
    return [*found, Span(whole, end, end - whole)] if whole < end else found


def count_spans(length: int) -> int:
    """len(spans(0, length)), for lengths that a compiler has not fixed."""
    return -(-(length // CHUNK) // SPAN) - (-(length % CHUNK) // CHUNK)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def has_log_scale(map_: FeatureMap) -> bool:
    """Whether the map takes a factor out of each vector."""
    return map_.log_scale


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


def divisor(total: Tensor) -> Tensor:
    """Rows without weight divide by infinity: value 0, gradient 0. The only guard; there is no epsilon."""
    return total.masked_fill(total == 0, float("inf"))


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


def write(x: Call, out: Results, part: slice, y: Tensor, log: Tensor | None, top: Tensor | None, span: Span) -> None:
    """Normalise a span of rows and store it, its totals and their scales; `top` (chunks, rows, 1, any)."""
    place, total = span.of(out.values[part], 2), span.of(out.total[part], 2)
    y = y.view(*place.shape[:-1], -1)
    values = y[..., :-1]
    total.copy_(y[..., -1])
    if not x.normalise:
        place.copy_(values)
    elif place.dtype == x.dtype:
        torch.div(values, divisor(y[..., -1:]), out=place)
    else:
        place.copy_(values / divisor(y[..., -1:]))
    if top is not None:
        span.of(out.highest[part], 2).copy_(top if log is None else top + log.view(total.shape))


def forward_full(x: Call, out: Results, part: slice, state: Tensor, top: Tensor | None) -> None:
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


def pieces(length: int) -> list[Span]:
    """Spans of one chunk each, for sums without an order."""
    return [
        Span(a, min(a + SPAN * CHUNK, length), min(SPAN * CHUNK, length - a)) for a in range(0, length, SPAN * CHUNK)
    ]


class Gradients(NamedTuple):
    """Gradients of the results (None: not used) or of the inputs."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_weight: Tensor
    """empty where there is none"""
    sum: Tensor


def row_gradient(x: Call, out: Results, of_values: Tensor, of_total: Tensor | None, span: Span) -> Tensor:
    """The gradient of the unnormalised rows y = [numerator, total] of one part."""
    given = span.of(of_values, 2)
    g = torch.empty(*given.shape[:-1], given.shape[-1] + 1, dtype=x.dtype, device=given.device)
    of_numerator, last = g[..., :-1], g[..., -1]
    if x.normalise:
        torch.div(given.to(x.dtype), divisor(span.of(out.total, 2))[..., None], out=of_numerator)
        torch.sum(of_numerator * span.of(out.values, 2), -1, out=last).neg_()
    else:
        of_numerator.copy_(given)
        last.zero_()
    if of_total is not None:
        last += span.of(of_total, 2)
    return g.flatten(2, 3).flatten(0, 1)


def backward_full(
    x: Call, out: Results, into: Gradients, of_values: Tensor, of_total: Tensor | None, carried: Tensor
) -> None:
    """`out` and `into` are views of this part's rows; `carried`, the gradient of the state, is consumed."""
    for span in pieces(x.q.shape[2]):
        queries = x.queries(span, span)
        g = row_gradient(x, out, of_values, of_total, span)
        of_fq = torch.bmm(g, out.sum.mT)
        carried.baddbmm_(g.mT, queries.turned)
        x.pull(x.query_map, of_fq, queries, span, span.of(into.q, 2))
    for span in pieces(x.k.shape[1]):
        keys, v = x.keys(span), x.columns(span)
        log, scaled = x.log_weights(keys, span), v
        of_v = torch.bmm(keys.turned, carried.mT)
        if log is not None:
            key = (log[0] - out.top[:, None].clamp_min(LOWEST)).to(x.dtype).exp()[..., None]
            of_v.mul_(key)
            scaled = v * key
        x.store_values(of_v, v, into, span)
        x.pull(x.key_map, torch.bmm(scaled, carried), keys, span, span.of(into.k))
    if x.weighted:
        carried.mul_((out.kept_top[0] - out.top.clamp_min(LOWEST)).to(x.dtype).exp()[:, None, None])
    into.sum.copy_(carried.mT)
