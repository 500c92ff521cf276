"""The kernel operator: averages of values under weights phi_q(q_i) . phi_k(k_j) exp(w_j), in O(length) time.

One operator serves causal, bidirectional and cross attention, training, prefill and states. Features are made chunk by
chunk, forward and backward, so nothing of size length x features is stored; a compiler sees one node at any length.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.core.attention import accumulation_dtype
from regard.engines.operator import Wanted, operator
from regard.engines.sums.backward import Gradients, backward_causal, backward_full
from regard.engines.sums.passes import (
    CHUNK,
    Operands,
    Results,
    count_spans,
    empty_sum,
    forward_causal,
    forward_full,
    learning,
    require_kept,
)
from regard.engines.sums.step import Averaged, step
from regard.features.maps import FEATURE_MAPS

__all__ = ["kernel_average"]


def kernel_average(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sum: Tensor | None = None,
    top: Tensor | None = None,
    *,
    query_map: str,
    key_map: str,
    causal: bool,
    normalise: bool = True,
    scale: float = 1.0,
    projection: Tensor | None = None,
    log_weight: Tensor | None = None,
    key_mask: Tensor | None = None,
    rotation: Tensor | None = None,
) -> Averaged:
    """Average values under kernel weights.

    out_i = sum_j W_ij v_j / sum_j W_ij with W_ij = phi_q(scale q_i) . phi_k(scale k_j) exp(w_j). Causal: over the keys
    up to query i, where the queries are the last positions.

    Cost: O(length x features x (dim + value)) time; beyond inputs and outputs one state per 512 keys when a gradient is
    wanted. There is no epsilon: a row whose weights sum to exactly 0 gives 0.

    Args:
        q: (batch, heads, queries, dim).
        k, v: (batch, kv_heads, keys, dim or value).
        sum, top: the state before these keys; None: there were none. `top` exists exactly where there are log weights.
        query_map, key_map: names of feature maps.
        causal: each query sees the keys up to its own position.
        normalise: divide by the sum of the weights.
        scale: multiplies q and k before the feature maps.
        projection: (kv_heads, rows, dim), for random maps.
        log_weight: (batch, kv_heads, keys), w_j. May be float64 where values grow (a decay accumulated over the
            length): differences are taken before rounding.
        key_mask: (batch, keys), True = real; k and v are 0 elsewhere.
        rotation: (2, keys, features / 2), cosines and sines by which pairs of features are turned.

    Returns:
        Averaged, differentiable with respect to q, k, v, sum and log_weight, once.
    """
    dtype, maps = accumulation_dtype(q.dtype), (FEATURE_MAPS[query_map], FEATURE_MAPS[key_map])
    if sum is None:
        sum = empty_sum(k, v, maps[1], 0 if projection is None else projection.shape[1])
        if log_weight is not None or maps[1].log_scale:
            top = sum.new_full(k.shape[:2], float("-inf"), dtype=None if log_weight is None else log_weight.dtype)
    sum, top = sum.to(dtype), None if top is None else top.to(torch.promote_types(top.dtype, dtype))
    if q.shape[2] <= 1 and k.shape[2] <= 1:
        return step(q, k, v, sum, top, maps, scale, normalise, projection, log_weight, key_mask, rotation)
    keep = learning(q, k, v, sum, log_weight)
    tensors, options = (projection, log_weight, key_mask, rotation), (query_map, key_map, scale, normalise, causal)
    return Averaged(*_average(Arguments(q, k, v, sum, top, *tensors, *options, keep))[:5])


class Arguments(NamedTuple):
    """Of the operator; see `kernel_average`."""

    q: Tensor
    k: Tensor
    v: Tensor
    sum: Tensor
    top: Tensor | None
    projection: Tensor | None
    log_weight: Tensor | None
    key_mask: Tensor | None
    rotation: Tensor | None
    query_map: str
    key_map: str
    scale: float
    normalise: bool
    causal: bool
    keep: bool
    """keep states for the backward pass"""

    def operands(self) -> Operands:
        """With batch and kv_heads as one axis of rows."""
        batch, kv_heads, keys = self.k.shape[:3]
        rows = batch * kv_heads
        return Operands(
            q=self.q.reshape(rows, self.q.shape[1] // kv_heads, *self.q.shape[2:]),
            k=self.k.reshape(rows, *self.k.shape[2:]),
            v=self.v.reshape(rows, *self.v.shape[2:]),
            projection=self.projection,
            log_weight=None if self.log_weight is None else self.log_weight.reshape(rows, keys),
            real=None if self.key_mask is None else self.key_mask[:, None].expand(-1, kv_heads, -1).flatten(0, 1),
            rotation=self.rotation,
            query_map=FEATURE_MAPS[self.query_map],
            key_map=FEATURE_MAPS[self.key_map],
            scale=self.scale,
            normalise=self.normalise,
            causal=self.causal,
        )


def forward(given: Arguments) -> Results:
    """The averages, and the states before each span where they are kept; nothing in it is seen by autocast."""
    x, sum, top = given.operands(), given.sum, given.top
    assert x.weighted == (top is not None), "a state has a top exactly where there are log weights"
    out = _blank(given)
    views, first = _by_rows(out, x), None if top is None else top.flatten()
    if first is not None and not x.causal:
        out.kept_top[0] = first
    run, states = forward_causal if x.causal else forward_full, sum.flatten(0, 1)
    with torch.no_grad(), torch.autocast(x.q.device.type, enabled=False):
        for part, piece in x.split(sum.shape[2]):
            state = states[part].mT.clone(memory_format=torch.contiguous_format)
            run(piece, views, part, state, None if first is None else first[part])
    return out


def _blank(x: Arguments) -> Results:
    """Results of the right shapes, unwritten."""
    q, k, v, sum, top, *_, causal, keep = x
    batch, heads, queries = q.shape[:3]
    kv_heads, keys = k.shape[1:3]
    rows = batch * kv_heads
    spans = count_spans(keys - queries) + count_spans(queries) if causal and keep else 0
    scales = [(0,), (0,), (0, rows)]
    if top is not None:
        scales = [(batch, heads, queries), (batch, kv_heads), (spans if causal else 1, rows)]
    highest, last, kept_top = (
        torch.empty(shape, dtype=sum.dtype if top is None else top.dtype, device=q.device) for shape in scales
    )
    return Results(
        torch.empty(batch, heads, queries, v.shape[3], dtype=q.dtype, device=q.device),
        torch.empty(batch, heads, queries, dtype=sum.dtype, device=q.device),
        highest,
        torch.empty_like(sum, memory_format=torch.contiguous_format),
        last,
        torch.empty(spans, rows, sum.shape[3], sum.shape[2], dtype=sum.dtype, device=q.device),
        kept_top,
    )


def _by_rows(out: Results, x: Operands) -> Results:
    """Views with batch and kv_heads as one axis of rows."""
    rows, group = x.q.shape[:2]
    return Results(
        out.values.view(rows, group, *out.values.shape[2:]),
        out.total.view(rows, group, out.total.shape[2]),
        out.highest.view(rows, group, out.highest.shape[2]) if out.highest.numel() else out.highest,
        out.sum.flatten(0, 1),
        out.top.flatten(),
        out.kept_sum,
        out.kept_top,
    )


def backward(given: Arguments, out: Results, of: Results, _wanted: Wanted) -> Gradients:
    """The gradients of q, k, v, log_weight and sum, from those of values, total and sum; of no log_weight, empty."""
    x, sum = given.operands(), out.sum
    if x.causal:
        require_kept(out.kept_sum)
    views = _by_rows(out._replace(highest=sum.new_empty(0)), x)
    weight = sum.new_empty(0) if given.log_weight is None else given.log_weight
    into = Gradients(*(y.new_empty(y.shape) for y in (*given[:3], weight, sum)))
    flat = Gradients(into.q.view_as(x.q), *(g.flatten(0, 1) if g.ndim > 1 else g for g in into[1:]))
    of_values = torch.zeros_like(out.values) if of.values is None else of.values
    of_values = of_values.reshape(*x.q.shape[:2], *of_values.shape[2:])
    of_total = None if of.total is None else of.total.reshape(x.q.shape[:3])
    run, states = backward_causal if x.causal else backward_full, None if of.sum is None else of.sum.flatten(0, 1)
    with torch.no_grad(), torch.autocast(x.q.device.type, enabled=False):
        for part, piece in x.split(sum.shape[2]):
            of_state = torch.zeros_like(views.sum[part].mT, memory_format=torch.contiguous_format)
            if states is not None:
                of_state += states[part].mT
            slope = None if of_total is None else of_total[part]
            run(piece, views.of(part), Gradients(*(g[part] for g in flat)), of_values[part], slope, of_state)
    return into


def _flops(x: Arguments, products: tuple[int, int, int, int, int]) -> int:
    """Multiplications and additions of the matrix products of a pass, from shapes in the place of tensors.

    `products` counts those with the state per query and per key, those with the projection for both, and those of a
    chunk's pairs over the features and over the value columns.
    """
    shapes: Any = x
    (batch, heads, queries, dim), (kv_heads, keys), (features, columns) = shapes.q, shapes.k[1:3], shapes.sum[2:]
    of_query, of_key, maps, over_features, over_columns = products
    projected = x.projection is not None
    per_query = of_query * features * columns + maps * projected * features * dim
    if x.causal:
        per_query += CHUNK * (over_features * features + over_columns * columns)
    per_key = of_key * features * columns + maps * projected * features * dim
    return 2 * batch * (heads * queries * per_query + kv_heads * keys * per_key)


_average = operator(
    "kernel",
    forward,
    backward,
    fake=_blank,
    wrt=("q", "k", "v", "log_weight", "sum"),
    of=("values", "total", "sum"),
    keeps=("values", "total", "sum", "top", "kept_sum", "kept_top"),
    unread=("sum", "top"),
    flops=(lambda x: _flops(x, (1, 1, 1, 1, 1)), lambda x: _flops(x, (2, 3 if x.causal else 2, 2, 3, 2))),
)
