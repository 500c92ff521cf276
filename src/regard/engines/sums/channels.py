"""The passes and operator of causal Efficient Attention: each channel has a softmax over the keys so far of its own.

    y_i = sum_c (r_ic / z_ic) sum_{j <= i} exp(k_jc - M_ic) v_j,    z_ic = sum_{j <= i} exp(k_jc - M_ic)

M_ic is the running maximum of channel c. A weight exp(k_jc - M_ic) is no product of a query's and a key's number that
could not overflow, unless some M_b lies between: exp(k_jc - M_bc) exp(M_bc - M_ic), both at most 1, for any boundary b
with j <= b <= i. So a chunk of 64 is halved again and again: the right half of each block meets its left half at their
boundary, six levels and the diagonal. What came before the chunk meets it at its start, as a state.

    S  <- exp(M_start - M_end) S + sum_j exp(k_j - M_end) [v_j, 1]^T
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.core.attention import accumulation_dtype
from regard.engines.operator import Wanted, operator
from regard.engines.sums.passes import CHUNK, LOWEST, SPAN, Span, count_spans, divisor, learning, require_kept, spans

__all__ = ["average_by_channel"]

BUFFER_BYTES = 1 << 20
"""of the keys of one span on a CPU: some fifteen such buffers are alive at once"""
DEVICE_BUFFER_BYTES = 1 << 27


class Channels(NamedTuple):
    """The result of a call."""

    values: Tensor
    """(batch, heads, queries, value)"""
    sum: Tensor
    """(batch, kv_heads, dim, value + 1): sum_j exp(k_jc - top_c) [v_j, 1]^T"""
    top: Tensor
    """(batch, kv_heads, dim): the largest key of each channel, a constant to autograd"""


def average_by_channel(r: Tensor, k: Tensor, v: Tensor, sum: Tensor, top: Tensor) -> Channels:
    """The causal average; the queries are the last positions.

    Cost: O(length x dim x value) time; beyond inputs and outputs one state per 512 keys when a gradient is wanted.

    Args:
        r: (batch, heads, queries, dim), the weights of the channels.
        k, v: (batch, kv_heads, keys, dim or value); k is -inf and v is 0 at padding.
        sum, top: the state before the first key; zeros and -inf.

    Returns:
        Channels, differentiable with respect to r, k, v and sum, once.
    """
    return Channels(*_average(Arguments(r, k, v, sum, top, learning(r, k, v, sum)))[:3])


class Arguments(NamedTuple):
    """Of the operator; see `average_by_channel`."""

    r: Tensor
    k: Tensor
    v: Tensor
    sum: Tensor
    top: Tensor
    keep: bool
    """keep states for the backward pass"""


class Results(NamedTuple):
    values: Tensor
    sum: Tensor
    top: Tensor
    kept_sum: Tensor
    """(spans, rows, value + 1, dim): states before each span; none where nothing is kept"""
    kept_top: Tensor


class _Chunks(NamedTuple):
    """Numbers of the keys of a span; `rows` = chunks * rows in front, width a power of two."""

    k: Tensor
    """(rows, width, dim)"""
    v: Tensor
    """(rows, width, value + 1), whose last column is 1"""
    running: Tensor
    """(rows, width, dim): M_i"""
    shifted: Tensor
    """(rows, width, dim): exp(k_i - M_i)"""
    before: Tensor
    """(rows, width, dim): exp(M_start - M_i)"""
    after: Tensor
    """(rows, width, dim): exp(k_i - M_end)"""
    carry: Tensor
    """(chunks, rows, 1, dim): exp(M_start - M_end)"""
    top: Tensor
    """(rows, dim): M at the end of the span"""


def _halves(x: Tensor, half: int, axis: int = -2) -> tuple[Tensor, Tensor]:
    """Views of the left and right halves of the blocks along an axis of positions (counted from the end)."""
    left, right = x.unflatten(axis, (-1, 2, half)).unbind(axis - 1)
    return left, right


class _Level(NamedTuple):
    """Blocks of one size, halved; (rows, blocks, half, dim) each."""

    half: int
    left: Tensor
    """exp(k_j - M_b) of the left halves, which end at b"""
    right: Tensor
    """exp(M_b - M_i) of the right halves"""

    def halves(self, x: Tensor, axis: int = -2) -> tuple[Tensor, Tensor]:
        return _halves(x, self.half, axis)

    def pairs(self, matrix: Tensor) -> Tensor:
        """The part of (rows, group, width, width) where right halves meet left ones: (rows, blocks, group, half, half).

        A view.
        """
        _, right = self.halves(matrix, -2)
        left, _ = self.halves(right, -1)
        return left.diagonal(dim1=2, dim2=4).movedim(-1, 1)


def _chunks(k: Tensor, v: Tensor, top: Tensor, span: Span) -> _Chunks:
    """`k` and `v`: (rows, keys, any)."""
    dtype = accumulation_dtype(k.dtype)
    keys = _even(span.of(k).to(dtype), float("-inf"))
    columns = torch.nn.functional.pad(_even(span.of(v).to(dtype), 0), (0, 1), value=1.0)
    within = keys.cummax(2).values
    ends = torch.cat([top[None], within[:, :, -1]]).cummax(0).values
    start, end = ends[:-1, :, None], ends[1:, :, None].clamp_min(LOWEST)
    running = torch.maximum(within, start).clamp_min_(LOWEST)
    return _Chunks(
        keys.flatten(0, 1),
        columns.flatten(0, 1),
        running.flatten(0, 1),
        (keys - running).exp_().flatten(0, 1),
        (start - running).exp_().flatten(0, 1),
        (keys - end).exp_().flatten(0, 1),
        (start - end).exp_(),
        ends[-1],
    )


def _even(x: Tensor, fill: float) -> Tensor:
    """Chunks (chunks, rows, ..., width, any) filled up to a power of two."""
    width = x.shape[-2]
    missing = (1 << (width - 1).bit_length()) - width
    return torch.nn.functional.pad(x, (0, 0, 0, missing), value=fill) if missing else x.contiguous()


def _levels(c: _Chunks) -> list[_Level]:
    levels, half = [], 1
    while half < c.k.shape[1]:
        keys, (boundary, running) = _halves(c.k, half)[0], _halves(c.running, half)
        boundary = boundary[..., -1:, :]
        levels.append(_Level(half, (keys - boundary).exp_(), (boundary - running).exp_()))
        half *= 2
    return levels


def _normaliser(c: _Chunks, levels: list[_Level], start: Tensor) -> Tensor:
    """z (rows, width, dim), from that of the states before the chunks (rows, 1, dim). A scan over the levels."""
    z = c.shifted.clone()
    for level in levels:
        left, right = level.halves(z)
        right.addcmul_(level.right, left[..., -1:, :])
    return divisor(z.addcmul_(c.before, start))


def _weights(c: _Chunks, levels: list[_Level], fq: Tensor) -> Tensor:
    """(rows, group, width, width): sum_c fq_ic exp(k_jc - M_ic) for j <= i, else 0. fq (rows, group, width, dim)."""
    pairs = fq.new_zeros(*fq.shape[:3], fq.shape[2])
    pairs.diagonal(dim1=-2, dim2=-1).copy_((fq * c.shifted[:, None]).sum(-1))
    for level in levels:
        q = _right(level, fq)
        level.pairs(pairs).copy_(torch.matmul(q.flatten(2, 3), level.left.mT).view(*q.shape[:4], -1))
    return pairs


def _right(level: _Level, fq: Tensor) -> Tensor:
    """(rows, blocks, group, half, dim): features of the right halves, relative to their boundary."""
    return (level.halves(fq)[1].movedim(2, 1) * level.right[:, :, None]).contiguous()


def _advance(c: _Chunks, states: Tensor) -> None:
    """Fill states[1:] (chunks, rows, value + 1, dim) from states[0]."""
    chunks, rows = c.carry.shape[:2]
    added = torch.bmm(c.v.mT, c.after).unflatten(0, (chunks, rows))
    for i in range(chunks):
        torch.addcmul(added[i], states[i], c.carry[i], out=states[i + 1])


def _parts(rows: int, group: int, keys: int, dim: int, x: Tensor) -> list[slice]:
    """The rows in parts whose buffers of one span fill the cache."""
    row = min(SPAN * CHUNK, keys) * dim * (1 + group) // 2 * accumulation_dtype(x.dtype).itemsize
    size = max(1, (BUFFER_BYTES if x.device.type == "cpu" else DEVICE_BUFFER_BYTES) // max(row, 1))
    return [slice(a, min(a + size, rows)) for a in range(0, rows, size)]


def _flat(r: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Batch and kv_heads as one axis of rows: r (rows, group, queries, dim), k and v (rows, keys, any)."""
    rows = k.shape[0] * k.shape[1]
    r = r.reshape(rows, r.shape[1] // k.shape[1], *r.shape[2:])
    return r, k.reshape(rows, *k.shape[2:]), v.reshape(rows, *v.shape[2:])


def _spans(queries: int, keys: int) -> list[Span]:
    return [*spans(0, keys - queries), *spans(keys - queries, keys)]


def _queries(r: Tensor, span: Span) -> Tensor:
    """(chunks * rows, group, width, any)"""
    return _even(span.of(r, 2).to(accumulation_dtype(r.dtype)), 0).flatten(0, 1)


def _blank(x: Arguments) -> Results:
    """Results of the right shapes, unwritten."""
    r, k, v, sum, top, keep = x
    queries, keys = r.shape[2], k.shape[2]
    kept = count_spans(keys - queries) + count_spans(queries) if keep else 0
    rows = sum.shape[0] * sum.shape[1]
    return Results(
        r.new_empty(*r.shape[:3], v.shape[3]),
        torch.empty_like(sum, memory_format=torch.contiguous_format),
        torch.empty_like(top, memory_format=torch.contiguous_format),
        sum.new_empty(kept, rows, sum.shape[3], sum.shape[2]),
        top.new_empty(kept, rows, top.shape[2]),
    )


def forward(x: Arguments) -> Results:
    """The averages, and the states before each span where they are kept."""
    r, k, v, sum, top, keep = x
    out = _blank(x)
    queries, keys, dim = r.shape[2], k.shape[2], k.shape[3]
    values = out.values.view(-1, r.shape[1] // k.shape[1], queries, v.shape[3])
    flat = _flat(r, k, v)
    rows = flat[1].shape[0]
    with torch.no_grad(), torch.autocast(r.device.type, enabled=False):
        for part in _parts(rows, flat[0].shape[1], keys, dim, r):
            pr, pk, pv = (y[part] for y in flat)
            states = sum.new_empty(SPAN + 1, pk.shape[0], v.shape[3] + 1, dim)
            states[0] = sum.reshape(rows, *sum.shape[2:])[part].mT
            before = top.reshape(rows, dim)[part]
            for index, span in enumerate(_spans(queries, keys)):
                if keep:
                    out.kept_sum[index, part], out.kept_top[index, part] = states[0], before
                c = _chunks(pk, pv, before, span)
                _advance(c, states)
                if span.first >= keys - queries:
                    levels, at = _levels(c), span - (keys - queries)
                    start = states[: span.chunks].flatten(0, 1)
                    fq = _queries(pr, at) / _normaliser(c, levels, start[:, -1:])[:, None]
                    y = torch.matmul(_weights(c, levels, fq).flatten(1, 2), c.v[..., :-1])
                    y += torch.bmm((fq * c.before[:, None]).flatten(1, 2), start[:, :-1].mT)
                    place = at.of(values[part], 2)
                    place.copy_(y.view(*place.shape[:3], -1, place.shape[4])[..., : span.width, :])
                states[0], before = states[span.chunks], c.top
            out.sum.view(rows, *sum.shape[2:])[part] = states[0].mT
            out.top.view(rows, dim)[part] = before
    return out


def backward(x: Arguments, out: Results, of: Results, _wanted: Wanted) -> tuple[Tensor, ...]:
    """The gradients of r, k, v and sum from those of values and sum."""
    r, k, v, *_ = x
    kept_sum, kept_top = out.kept_sum, out.kept_top
    require_kept(kept_sum)
    of_values = r.new_zeros(*r.shape[:3], v.shape[3]) if of.values is None else of.values
    into = tuple(y.new_empty(y.shape) for y in x[:4])
    queries, keys, dim = r.shape[2], k.shape[2], k.shape[3]
    flat = (*_flat(r, k, v), _flat(of_values, k, v)[0])
    rows = flat[1].shape[0]
    of_r, of_k, of_v = _flat(*into[:3])
    with torch.no_grad(), torch.autocast(r.device.type, enabled=False):
        for part in _parts(rows, flat[0].shape[1], keys, dim, r):
            pr, pk, pv, slope = (y[part] for y in flat)
            states, slopes = (kept_sum.new_zeros(SPAN + 1, *kept_sum[0, part].shape) for _ in range(2))
            carried = slopes[0].clone()
            if of.sum is not None:
                carried += of.sum.reshape(rows, dim, -1)[part].mT
            for index, span in reversed(list(enumerate(_spans(queries, keys)))):
                c = _chunks(pk, pv, kept_top[index, part], span)
                of_keys, of_columns, of_start = torch.zeros_like(c.k), torch.zeros_like(c.v), None
                if span.first >= keys - queries:
                    at = span - (keys - queries)
                    states[0] = kept_sum[index, part]
                    _advance(c, states)
                    start = states[: span.chunks].flatten(0, 1)
                    of_queries, of_start = _pull(c, start, _queries(pr, at), _queries(slope, at), of_keys, of_columns)
                    place = at.of(of_r[part], 2)
                    place.copy_(of_queries.view(*place.shape[:3], -1, dim)[..., : span.width, :])
                slopes[span.chunks] = carried
                for i in reversed(range(span.chunks)):
                    torch.mul(slopes[i + 1], c.carry[i], out=slopes[i])
                    if of_start is not None:
                        slopes[i] += of_start[i * len(carried) : (i + 1) * len(carried)]
                ends = slopes[1 : span.chunks + 1].flatten(0, 1)
                of_keys.addcmul_(c.after, torch.bmm(c.v, ends))
                of_columns.baddbmm_(c.after, ends.mT)
                carried = slopes[0].clone()
                for y, gradient in ((of_k, of_keys), (of_v, of_columns[..., :-1])):
                    place = span.of(y[part])
                    place.copy_(gradient.unflatten(0, place.shape[:2])[:, :, : span.width])
            into[3].view(rows, dim, -1)[part] = carried.mT
    return into


def _pull(
    c: _Chunks, start: Tensor, r: Tensor, g: Tensor, of_keys: Tensor, of_columns: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the rows of a span: of r, and of the states before its chunks; those of keys and values are added.

    `g` (rows, group, width, value) is the gradient of the values.
    """
    levels = _levels(c)
    z = _normaliser(c, levels, start[:, -1:])[:, None]
    fq = r / z
    of_columns[..., :-1].baddbmm_(_weights(c, levels, fq).flatten(1, 2).mT, g.flatten(1, 2))
    of_pairs = torch.matmul(g.flatten(1, 2), c.v[..., :-1].mT).unflatten(1, fq.shape[1:3])
    diagonal = of_pairs.diagonal(dim1=-2, dim2=-1)[..., None]
    of_fq = torch.bmm(g.flatten(1, 2), start[:, :-1]).view_as(fq).mul_(c.before[:, None])
    of_fq.addcmul_(diagonal, c.shifted[:, None])
    of_keys.addcmul_(c.shifted, (diagonal * fq).sum(1))
    for level in levels:
        q, of_pair = _right(level, fq).flatten(2, 3), level.pairs(of_pairs).flatten(2, 3)
        level.halves(of_keys)[0].addcmul_(level.left, torch.matmul(of_pair.mT, q))
        of_right = torch.matmul(of_pair, level.left).unflatten(2, (fq.shape[1], -1)) * level.right[:, :, None]
        level.halves(of_fq)[1].add_(of_right.movedim(2, 1))
    of_r = of_fq / z
    of_z = (of_r * fq).sum(1).neg_()
    of_keys.addcmul_(c.shifted, of_z)
    for level in levels:
        right = (level.halves(of_z)[1] * level.right).sum(-2, keepdim=True)
        level.halves(of_keys)[0].addcmul_(level.left, right)
    seen = (fq * c.before[:, None]).flatten(1, 2)
    return of_r, torch.cat([torch.bmm(g.flatten(1, 2).mT, seen), (of_z * c.before).sum(1, keepdim=True)], 1)


def _flops(x: Arguments, products: int) -> int:
    """Multiplications and additions: products with the state per query and per key, and those of a chunk's pairs.

    From shapes in the place of tensors.
    """
    shapes: Any = x
    (batch, heads, queries, dim), (kv_heads, keys), value = shapes.r, shapes.k[1:3], shapes.v[3]
    per_query = dim * value + CHUNK * (dim // 2 + value)
    return 2 * products * batch * (heads * queries * per_query + kv_heads * keys * dim * (value + 1))


_average = operator(
    "channels",
    forward,
    backward,
    fake=_blank,
    wrt=("r", "k", "v", "sum"),
    of=("values", "sum"),
    keeps=("kept_sum", "kept_top"),
    unread=("sum", "top"),
    flops=(lambda x: _flops(x, 1), lambda x: _flops(x, 3)),
)
