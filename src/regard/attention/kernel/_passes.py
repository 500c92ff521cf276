"""The passes over chunks behind the kernel operator (`_engine`), forward and backward.

Causal form, chunk by chunk (SPEC 0.5), with v' = [v, 1] so that the normaliser is one more value column:

    y_i = sum_{j <= i, same chunk} (phi_q(q_i) . phi_k(k_j)) exp(w_j - m_i) v'_j  +  exp(m - m_i) phi_q(q_i) S
    S  <- exp(m - m_end) S + sum_j exp(w_j - m_end) phi_k(k_j) v'_j^T

w_j is the log weight of a key: the scale that its feature map took out, decay, gates, -inf for padding. m_i is its
running maximum over j <= i: a maximum over a whole chunk would let a later key change the rounding of an earlier row.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.feature_maps import LOG2E, FeatureMap

CHUNK = 64
SPAN = 8
"""chunks between the states that the forward pass keeps for the backward pass"""
BUFFER_BYTES = 1 << 20
LOWEST = -1e30
"""stands for a running maximum of -inf (no key yet), whose differences would be NaN"""


@dataclass(frozen=True)
class Call:
    """The inputs of one call (or some of its rows). A row is one head of keys and values of one batch element."""

    q: Tensor
    """(rows, group, queries, dim)"""
    k: Tensor
    """(rows, keys, dim)"""
    v: Tensor
    projection: Tensor | None
    """(kv_heads, features or half, dim)"""
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
        """The rows in parts whose features of one chunk fill a buffer that stays in the cache."""
        rows = self.k.shape[0]
        if self.q.is_cuda:
            count = 1
        else:
            bytes_per_row = CHUNK * features * (1 + self.group) * self.dtype.itemsize
            count = min(rows, -(-rows * bytes_per_row // BUFFER_BYTES))
        size = -(-rows // max(count, 1))
        for start in range(0, rows, max(size, 1)):
            part = slice(start, min(start + size, rows))
            yield part, self._rows(part)

    def _rows(self, part: slice) -> "Call":
        projection = self.projection
        if projection is not None:
            heads = torch.arange(part.start, part.stop, device=projection.device) % projection.shape[0]
            projection = projection[heads].to(self.dtype)
        return replace(
            self,
            q=self.q[part],
            k=self.k[part],
            v=self.v[part],
            projection=projection,
            log_weight=None if self.log_weight is None else self.log_weight[part],
            real=None if self.real is None else self.real[part],
        )

    def queries(self, a: int, b: int) -> Tensor:
        x = self.q[:, :, a:b].to(self.dtype).flatten(1, 2)
        return x if self.scale == 1 else x * self.scale

    def keys(self, a: int, b: int) -> Tensor:
        x = self.k[:, a:b].to(self.dtype)
        return x if self.scale == 1 else x * self.scale

    def key_features(self, a: int, b: int) -> tuple[Tensor, Tensor | None]:
        """Features of a chunk of keys, and their log weights."""
        features, log = self.key_map.scaled(self.keys(a, b), self.projection)
        if not self.weighted:
            return features, None
        if self.log_weight is not None:
            given = self.log_weight[:, a:b]
            log = given if log is None else log + given
        assert log is not None
        if self.real is not None:
            log = log.masked_fill(~self.real[:, a:b], float("-inf"))
        return features, log

    def columns(self, a: int, b: int) -> Tensor:
        """Values of a chunk and the column of the normaliser, which is 0 at padding: exact removal."""
        v = self.v[:, a:b]
        columns = torch.empty(*v.shape[:2], v.shape[2] + 1, dtype=self.dtype, device=v.device)
        columns[..., :-1] = v
        columns[..., -1] = 1 if self.real is None else self.real[:, a:b]
        return columns

    def shown(self, of_values: Tensor, a: int, b: int) -> Tensor:
        """The gradient of a chunk of values, 0 at padding."""
        return of_values if self.real is None else of_values * self.real[:, a:b, None]

    def turn(self, features: Tensor, a: int, b: int, direction: int = 1) -> Tensor:
        """Rotate features by the angles of their slots (back: `direction` -1)."""
        if self.rotation is None:
            return features
        return turned(features.unflatten(1, (-1, b - a)), self.rotation[:, a:b], direction).view_as(features)

    def pull_queries(self, gradient: Tensor, features: Tensor, x: Tensor, a: int, b: int) -> Tensor:
        gradient = self.query_map.pull(self.turn(gradient, a, b, -1), features, x, self.projection)
        return gradient if self.scale == 1 else gradient * self.scale

    def pull_keys(self, gradient: Tensor, features: Tensor, x: Tensor, a: int, b: int) -> Tensor:
        gradient = self.key_map.pull(self.turn(gradient, a, b, -1), features, x, self.projection)
        return gradient if self.scale == 1 else gradient * self.scale

    def chunks(self) -> list[tuple[int, int, bool]]:
        """(first, end, has queries) of the chunks of keys, those before the first query apart."""
        keys = self.k.shape[1]
        past = keys - self.q.shape[2]
        before = [(a, min(a + CHUNK, past), False) for a in range(0, past, CHUNK)]
        return before + [(a, min(a + CHUNK, keys), True) for a in range(past, keys, CHUNK)]


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums: at least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def has_log_scale(map_: FeatureMap) -> bool:
    """Whether the map takes a factor out of each vector."""
    return map_.random and map_.name != "relu_random"


def turned(features: Tensor, rotation: Tensor | None, direction: int = 1) -> Tensor:
    """Turn neighbouring pairs of features: (..., slots, features) by (2, slots, features / 2)."""
    if rotation is None:
        return features
    cos, sin = rotation.to(features.dtype)
    even, odd = features.unflatten(-1, (-1, 2)).unbind(-1)
    sin = sin * direction
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class _Scales(NamedTuple):
    """Log weights of a chunk as factors of at most 1."""

    pair: Tensor
    """(rows, c, c): exp(w_j - m_i) where j <= i, else 0"""
    row: Tensor
    """(rows, c, 1): exp(m - m_i), for what came before the chunk"""
    key: Tensor
    """(rows, c, 1): exp(w_j - m_end)"""
    carry: Tensor
    """(rows, 1, 1): exp(m - m_end)"""
    running: Tensor
    """(rows, c): m_i"""


def _scales(log: Tensor, top: Tensor, dtype: torch.dtype) -> _Scales:
    running = torch.maximum(log.cummax(1).values, top[:, None])
    safe = running.clamp_min(LOWEST)
    end, start = safe[:, -1:], top[:, None]
    pair = (log[:, None, :] - safe[..., None]).to(dtype).mul_(LOG2E).clamp_max_(0).exp2_().tril_()
    return _Scales(
        pair,
        (start - safe).to(dtype).exp()[..., None],
        (log - end).to(dtype).exp()[..., None],
        (start - end).to(dtype).exp()[..., None],
        running,
    )


def _grouped(x: Tensor, group: int) -> Tensor:
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


def _write(x: Call, out: Results, part: slice, y: Tensor, log: Tensor | None, top: Tensor | None, a: int) -> None:
    """Normalise a chunk of rows and store it, its totals and their scales."""
    y = _grouped(y, x.group)
    b = a + y.shape[2]
    values, total, place = y[..., :-1], y[..., -1], out.values[part, :, a:b]
    if not x.normalise:
        place.copy_(values)
    elif place.dtype == x.dtype:
        torch.div(values, divisor(total)[..., None], out=place)
    else:
        place.copy_(values / divisor(total)[..., None])
    out.total[part, :, a:b] = total
    if top is not None:
        out.highest[part, :, a:b] = top if log is None else top + _grouped(log, x.group)


def forward_causal(x: Call, out: Results, part: slice, state: Tensor, top: Tensor | None) -> None:
    past = x.k.shape[1] - x.q.shape[2]
    for index, (a, b, queries) in enumerate(x.chunks()):
        if out.kept_sum.numel() and index % SPAN == 0:
            out.kept_sum[index // SPAN, part] = state
            if top is not None:
                out.kept_top[index // SPAN, part] = top
        fk, log = x.key_features(a, b)
        fk = x.turn(fk, a, b)
        v = x.columns(a, b)
        s = None if log is None or top is None else _scales(log, top, x.dtype)
        if queries:
            fq, query_log = x.query_map.scaled(x.queries(a - past, b - past), x.projection)
            fq = x.turn(fq, a, b)
            pair, y = torch.bmm(fq, fk.mT), torch.bmm(fq, state.mT)
            if s is None:
                _grouped(pair, x.group).tril_()
            else:
                _grouped(pair, x.group).mul_(s.pair[:, None])
                _grouped(y, x.group).mul_(s.row[:, None])
            running = None if s is None else s.running[:, None]
            _write(x, out, part, y.baddbmm_(pair, v), query_log, running, a - past)
        if s is not None:
            v.mul_(s.key)
            state.mul_(s.carry)
            top = s.running[:, -1]
        state.baddbmm_(v.mT, fk)
    out.sum[part] = state.mT
    if top is not None:
        out.top[part] = top


def forward_full(x: Call, out: Results, part: slice, state: Tensor, top: Tensor | None) -> None:
    for a in range(0, x.k.shape[1], CHUNK):
        b = min(a + CHUNK, x.k.shape[1])
        fk, log = x.key_features(a, b)
        fk, v = x.turn(fk, a, b), x.columns(a, b)
        if log is not None and top is not None:
            new = torch.maximum(top, log.amax(1))
            safe = new.clamp_min(LOWEST)
            state.mul_((top - safe).to(x.dtype).exp()[:, None, None])
            v.mul_((log - safe[:, None]).to(x.dtype).exp()[..., None])
            top = new
        state.baddbmm_(v.mT, fk)
    out.sum[part] = state.mT
    if top is not None:
        out.top[part] = top
    for a in range(0, x.q.shape[2], CHUNK):
        b = min(a + CHUNK, x.q.shape[2])
        fq, query_log = x.query_map.scaled(x.queries(a, b), x.projection)
        y = torch.bmm(x.turn(fq, a, b), state.mT)
        _write(x, out, part, y, query_log, None if top is None else top[:, None, None], a)


class Gradients(NamedTuple):
    """Gradients of the results (None: not used) or of the inputs."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_weight: Tensor
    """empty where there is none"""
    sum: Tensor


def _row_gradient(x: Call, out: Results, of_values: Tensor, of_total: Tensor | None, a: int, b: int) -> Tensor:
    """The gradient of the unnormalised rows y = [numerator, total] of one part."""
    given = of_values[:, :, a:b].to(x.dtype)
    total = out.total[:, :, a:b]
    g = torch.empty(*given.shape[:3], given.shape[3] + 1, dtype=x.dtype, device=given.device)
    if x.normalise:
        torch.div(given, divisor(total)[..., None], out=g[..., :-1])
        g[..., -1] = -(g[..., :-1] * out.values[:, :, a:b]).sum(-1)
    else:
        g[..., :-1] = given
        g[..., -1] = 0
    if of_total is not None:
        g[..., -1] += of_total[:, :, a:b]
    return g.flatten(1, 2)


def backward_causal(
    x: Call, out: Results, into: Gradients, of_values: Tensor, of_total: Tensor | None, carried: Tensor
) -> None:
    """`out` and `into` are views of this part's rows; `carried`, the gradient of the state, is consumed."""
    chunks, past = x.chunks(), x.k.shape[1] - x.q.shape[2]
    states = torch.empty(SPAN, *carried.shape, dtype=x.dtype, device=carried.device)
    for span in reversed(range(-(-len(chunks) // SPAN))):
        inside = chunks[span * SPAN : (span + 1) * SPAN]
        todo = []
        top = out.kept_top[span] if x.weighted else None
        states[0] = out.kept_sum[span]
        for index, (a, b, _) in enumerate(inside):
            plain, log = x.key_features(a, b)
            fk, v = x.turn(plain, a, b), x.columns(a, b)
            s, scaled = None, v
            if log is not None and top is not None:
                s = _scales(log, top, x.dtype)
                scaled, top = v * s.key, s.running[:, -1]
            if index + 1 < len(inside):
                before = states[index] if s is None else states[index] * s.carry
                torch.baddbmm(before, scaled.mT, fk, out=states[index + 1])
            todo.append((plain, fk, v, scaled, s))
        for index in reversed(range(len(inside))):
            a, b, queries = inside[index]
            plain, fk, v, scaled, s = todo.pop()
            of_fk = torch.bmm(scaled, carried)
            of_v = torch.bmm(fk, carried.mT)
            if s is not None:
                of_v.mul_(s.key)
                carried.mul_(s.carry)
            if queries:
                xq = x.queries(a - past, b - past)
                plain_q, _ = x.query_map.scaled(xq, x.projection)
                fq = x.turn(plain_q, a, b)
                g = _row_gradient(x, out, of_values, of_total, a - past, b - past)
                pair, of_pair = torch.bmm(fq, fk.mT), torch.bmm(g, v.mT)
                for matrix in (_grouped(pair, x.group), _grouped(of_pair, x.group)):
                    matrix.tril_() if s is None else matrix.mul_(s.pair[:, None])
                of_v.baddbmm_(pair.mT, g)
                of_fk.baddbmm_(of_pair.mT, fq)
                if s is not None:
                    _grouped(g, x.group).mul_(s.row[:, None])
                of_fq = torch.bmm(g, states[index]).baddbmm_(of_pair, fk)
                carried.baddbmm_(g.mT, fq)
                into.q[:, :, a - past : b - past] = _grouped(x.pull_queries(of_fq, plain_q, xq, a, b), x.group)
            if into.log_weight.numel():
                into.log_weight[:, a:b] = (v * of_v).sum(-1)
            into.v[:, a:b] = x.shown(of_v[..., :-1], a, b)
            into.k[:, a:b] = x.pull_keys(of_fk, plain, x.keys(a, b), a, b)
    into.sum.copy_(carried.mT)


def backward_full(
    x: Call, out: Results, into: Gradients, of_values: Tensor, of_total: Tensor | None, carried: Tensor
) -> None:
    queries, keys = x.q.shape[2], x.k.shape[1]
    for a in range(0, queries, CHUNK):
        b = min(a + CHUNK, queries)
        xq = x.queries(a, b)
        plain, _ = x.query_map.scaled(xq, x.projection)
        g = _row_gradient(x, out, of_values, of_total, a, b)
        of_fq = torch.bmm(g, out.sum.mT)
        carried.baddbmm_(g.mT, x.turn(plain, a, b))
        into.q[:, :, a:b] = _grouped(x.pull_queries(of_fq, plain, xq, a, b), x.group)
    for a in range(0, keys, CHUNK):
        b = min(a + CHUNK, keys)
        plain, log = x.key_features(a, b)
        v = x.columns(a, b)
        of_v, scaled = torch.bmm(x.turn(plain, a, b), carried.mT), v
        if log is not None:
            key = (log - out.top[:, None].clamp_min(LOWEST)).to(x.dtype).exp()[..., None]
            of_v.mul_(key)
            scaled = v * key
        if into.log_weight.numel():
            into.log_weight[:, a:b] = (v * of_v).sum(-1)
        into.v[:, a:b] = x.shown(of_v[..., :-1], a, b)
        into.k[:, a:b] = x.pull_keys(torch.bmm(scaled, carried), plain, x.keys(a, b), a, b)
    if x.weighted:
        carried.mul_((out.kept_top[0] - out.top.clamp_min(LOWEST)).to(x.dtype).exp()[:, None, None])
    into.sum.copy_(carried.mT)
