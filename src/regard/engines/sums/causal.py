"""The causal passes over chunks behind the kernel operator (`engine`), forward and backward.

Chunk by chunk (SPEC 0.5), with v' = [v, 1] so that the normaliser is one more value column:

    y_i = sum_{j <= i, same chunk} (phi_q(q_i) . phi_k(k_j)) exp(w_j - m_i) v'_j  +  exp(m - m_i) phi_q(q_i) S
    S  <- exp(m - m_end) S + sum_j exp(w_j - m_end) phi_k(k_j) v'_j^T

w_j is the log weight of a key: the scale that its feature map took out, decay, gates, -inf for padding. m_i is its
running maximum over j <= i: a maximum over a whole chunk would let a later key change the rounding of an earlier row.

Only the second line is a recurrence. Everything else is made for the chunks of a span together, chunks in front of rows
so that the state of each chunk lies in one piece.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.engines.sums.passes import (
    LOWEST,
    SPAN,
    Call,
    Gradients,
    Results,
    grouped,
    row_gradient,
    write,
)
from regard.features import LOG2E


class _Scales(NamedTuple):
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


def _scales(log: Tensor, top: Tensor, dtype: torch.dtype) -> _Scales:
    within = log.cummax(-1).values
    ends = torch.cat([top[None], within[..., -1]]).cummax(0).values
    start, end = ends[:-1, :, None], ends[1:, :, None].clamp_min(LOWEST)
    running = torch.maximum(within, start)
    safe = running.clamp_min(LOWEST)
    pair = (log[..., None, :] - safe[..., None]).to(dtype).mul_(LOG2E).clamp_max_(0).exp2_().tril_()
    return _Scales(
        pair.flatten(0, 1),
        (start - safe).to(dtype).exp().flatten(0, 1)[..., None],
        (log - end).to(dtype).exp().flatten(0, 1)[..., None],
        (start - end).to(dtype).exp()[..., None],
        running,
    )


def _carried(before: Tensor, s: _Scales | None, chunk: int, into: Tensor) -> Tensor:
    """A state (or the gradient of one) across a chunk, without what the chunk adds."""
    return into.copy_(before) if s is None else torch.mul(before, s.carry[chunk], out=into)


def forward_causal(x: Call, out: Results, part: slice, state: Tensor, top: Tensor | None) -> None:
    rows, past = state.shape[0], x.k.shape[1] - x.q.shape[2]
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
        s = None if log is None or top is None else _scales(log, top, x.dtype)
        scaled = v if s is None else v * s.key
        for i, (a, b) in enumerate(zip(scaled.mT.split(rows), fk.split(rows), strict=True)):
            _carried(each[i], s, i, each[i + 1]).baddbmm_(a, b)
        if span.first >= past:
            queries = x.queries(span - past, span)
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
            write(x, out, part, y.baddbmm_(pair, v), queries.log, running, span - past)
        states[0] = states[span.chunks]
        top = None if s is None else s.running[-1, :, -1]
    out.sum[part] = states[0].mT
    if top is not None:
        out.top[part] = top


def backward_causal(
    x: Call, out: Results, into: Gradients, of_values: Tensor, of_total: Tensor | None, carried: Tensor
) -> None:
    """`out` and `into` are views of this part's rows; `carried`, the gradient of the state, is consumed."""
    rows, past = carried.shape[0], x.k.shape[1] - x.q.shape[2]
    states, slopes = (carried.new_empty(SPAN + 1, *carried.shape) for _ in range(2))
    for index, span in reversed(list(enumerate(x.spans()))):
        keys, v = x.keys(span), x.columns(span)
        fk, log = keys.turned, x.log_weights(keys, span)
        s = None if log is None else _scales(log, out.kept_top[index], x.dtype)
        scaled = v if s is None else v * s.key
        slopes[span.chunks] = carried
        if span.first < past:
            for i in reversed(range(span.chunks)):
                _carried(slopes[i + 1], s, i, slopes[i])
            of_fk, of_v = _of_keys(fk, scaled, s, slopes[1 : span.chunks + 1])
        else:
            queries = x.queries(span - past, span)
            fq, g = queries.turned, row_gradient(x, out, of_values, of_total, span - past)
            of_y = g if s is None else (grouped(g, x.group) * s.row[:, None]).view_as(g)
            for i in reversed(range(span.chunks)):
                this = slice(i * rows, (i + 1) * rows)
                _carried(slopes[i + 1], s, i, slopes[i]).baddbmm_(of_y[this].mT, fq[this])
            states[0] = out.kept_sum[index]
            for i in range(span.chunks - 1):
                this = slice(i * rows, (i + 1) * rows)
                _carried(states[i], s, i, states[i + 1]).baddbmm_(scaled[this].mT, fk[this])
            pair, of_pair = torch.bmm(fq, fk.mT), torch.bmm(g, v.mT)
            for matrix in (grouped(pair, x.group), grouped(of_pair, x.group)):
                matrix.tril_() if s is None else matrix.mul_(s.pair[:, None])
            of_fk, of_v = _of_keys(fk, scaled, s, slopes[1 : span.chunks + 1])
            of_fk.baddbmm_(of_pair.mT, fq)
            of_v.baddbmm_(pair.mT, g)
            of_fq = torch.bmm(of_y, states[: span.chunks].flatten(0, 1)).baddbmm_(of_pair, fk)
            x.pull(x.query_map, of_fq, queries, span, (span - past).of(into.q, 2))
        carried.copy_(slopes[0])
        x.store_values(of_v, v, into, span)
        x.pull(x.key_map, of_fk, keys, span, span.of(into.k))
    into.sum.copy_(carried.mT)


def _of_keys(fk: Tensor, scaled: Tensor, s: _Scales | None, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the features and columns of keys, from those of the states behind them."""
    slopes = slopes.flatten(0, 1)
    of_v = torch.bmm(fk, slopes.mT)
    return torch.bmm(scaled, slopes), of_v if s is None else of_v.mul_(s.key)
