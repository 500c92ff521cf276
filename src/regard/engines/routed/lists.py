"""Attention over a list of keys per query: choosing the best by a score, and the softmax over those chosen.

Both walk the queries in buffers of a fixed size, so that neither the scores nor the gathered keys of all queries ever
exist. A list is a row of slots; -1 fills it up.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard.core.precision import accumulation_dtype
from regard.engines.operator import Wanted, operator, without_gradient
from regard.engines.routed import accumulate, doubled, exact, room

PIECEWISE_QUERIES = 16
"""up to this many queries the keys are widened piece by piece"""


@without_gradient(
    "best_keys",
    fake=lambda q, k, _, count, *__: q.new_empty((*q.shape[:3], min(count, k.shape[2])), dtype=torch.int64),
)
def best_keys(q: Tensor, k: Tensor, key_mask: Tensor | None, count: int, causal: bool) -> Tensor:
    """The slots of the `count` keys with the largest q_i . k_j, of those that a query may see.

    Args:
        q, k: (batch, heads, queries, features), (batch, kv_heads, keys, features).
        key_mask: (batch, keys), True = keep.
        count: slots in a list, where there are so many keys.
        causal: lower-right.

    Returns:
        int64 (batch, heads, queries, min(count, keys)), best first, of equal ones the earliest; -1 where a query
        sees fewer keys.
    """
    width = min(count, k.shape[2])
    lists = torch.full((*q.shape[:3], width), -1, dtype=torch.int64, device=q.device)
    for at, scores in doubled_scores(q, k, key_mask, causal):
        best = _largest(scores, min(width, scores.shape[-1]))
        lists[:, :, at, : best.indices.shape[-1]] = best.indices.masked_fill(best.values.isneginf(), -1)
    return lists


def doubled_scores(
    q: Tensor, k: Tensor, key_mask: Tensor | None, causal: bool, scale: float = 1.0
) -> Iterator[tuple[slice, Tensor]]:
    """For some queries at a time: which, and scale q_i . k_j in float64, -inf where a query may not see a key.

    Scores are (batch, heads, those queries, keys), where causal only of the keys up to the last of those queries.
    """
    (batch, heads, queries), (kv_heads, keys) = q.shape[:3], k.shape[1:3]
    past = keys - queries if causal else 0
    whole = doubled(k) if queries > PIECEWISE_QUERIES else None
    step = max(1, room(k) // max(1, batch * heads * keys))
    with exact(q):
        for first in range(0, queries, step):
            last = min(first + step, queries)
            seen = past + last if causal else keys
            rows = (doubled(q[:, :, first:last]) * scale).unflatten(1, (kv_heads, -1)).flatten(2, 3)
            scores = _products(rows, k[:, :, :seen]) if whole is None else rows @ whole[:, :, :seen].mT
            scores = scores.view(batch, heads, last - first, seen)
            if causal:
                late = torch.ones(last - first, seen, dtype=torch.bool, device=q.device).triu(past + first + 1)
                scores.masked_fill_(late, float("-inf"))
            if key_mask is not None:
                scores.masked_fill_(~key_mask[:, None, None, :seen], float("-inf"))
            yield slice(first, last), scores


def _largest(scores: Tensor, count: int) -> torch.return_types.topk:
    """The largest of each row; of equal ones the first, which `topk` leaves open."""
    best = scores.topk(count, -1)
    least = best.values[..., -1:]
    equal, wanted = scores == least, (best.values == least).sum(-1, keepdim=True)
    if not bool((equal.sum(-1, keepdim=True) > wanted).any()):
        return best
    return scores.masked_fill(equal & (equal.cumsum(-1) > wanted), float("-inf")).topk(count, -1)


def _products(rows: Tensor, k: Tensor) -> Tensor:
    """rows k^T in float64 without a float64 copy of every key: for few queries, that copy is most of the work."""
    step = max(1, room(k) // max(1, k.shape[0] * k.shape[1] * k.shape[3]))
    return torch.cat([rows @ doubled(keys).mT for keys in k.split(step, 2)], -1)


def _steps(lists: Tensor, k: Tensor, v: Tensor) -> Iterator[tuple[slice, tuple[Tensor, Tensor, Tensor], Tensor]]:
    """(queries, where their keys are in k and v, what is no key) for some queries at a time.

    Shapes are (batch, heads, queries, list). Keys are read where they are: those of a state are no contiguous tensor.
    """
    batch, heads, queries, width = lists.shape
    step = max(1, room(k) // max(1, batch * heads * width * (k.shape[3] + v.shape[3])))
    row = torch.arange(batch, device=k.device)[:, None, None, None]
    head = (torch.arange(heads, device=k.device) // (heads // k.shape[1]))[:, None, None]
    for first in range(0, queries, step):
        part = lists[:, :, first : first + step]
        yield slice(first, first + part.shape[2]), (row, head, part.clamp_min(0)), (part < 0).flatten(0, 2)


def _weights(q: Tensor, keys: Tensor, none: Tensor, scale: float) -> Tensor:
    """softmax_j(scale q . k_j) over (rows, list), 0 where there is no key."""
    logits = (keys @ q[..., None])[..., 0].mul_(scale).masked_fill_(none, float("-inf"))
    lowest = torch.finfo(logits.dtype).min  # of an empty list, whose differences would be NaN
    odds = torch.exp(logits - logits.amax(-1, keepdim=True).clamp_min(lowest))
    total = odds.sum(-1, keepdim=True)
    return odds.div_(torch.where(total == 0, 1, total))


class Listed(NamedTuple):
    """softmax(scale q_i . k_j) v_j over the keys j in the list of query i; an empty list gives 0."""

    q: Tensor
    """(batch, heads, queries, dim)"""
    k: Tensor
    """(batch, kv_heads, keys, dim)"""
    v: Tensor
    """(batch, kv_heads, keys, value)"""
    lists: Tensor
    """(batch, heads, queries, any), slots of keys; -1 is none"""
    scale: float
    """of the logits"""


def _blank(x: Listed) -> Tensor:
    return x.q.new_empty((*x.q.shape[:3], x.v.shape[3]), dtype=accumulation_dtype(x.q.dtype))


def forward(x: Listed) -> Tensor:
    """(batch, heads, queries, value) in the dtype of the arithmetic, at least float32."""
    q, k, v, lists, scale = x
    values = _blank(x).zero_()
    if lists.numel():
        with exact(q):
            for at, where, none in _steps(lists, k, v):
                keys, content = (y[where].to(values.dtype).flatten(0, 2) for y in (k, v))
                weights = _weights(q[:, :, at].to(values.dtype).flatten(0, 2), keys, none, scale)
                values[:, :, at] = (weights[:, None] @ content).view(*q.shape[:2], -1, v.shape[3])
    return values


def backward(x: Listed, _out: Tensor, of: Tensor, _wanted: Wanted) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v; the weights are computed again."""
    q, k, v, lists, scale = x
    dtype = accumulation_dtype(q.dtype)
    dq = q.new_zeros(q.shape, dtype=dtype)
    dk, dv = (y.new_zeros((y.shape[:3].numel(), y.shape[3]), dtype=dtype) for y in (k, v))
    if lists.numel():
        with exact(q):
            for at, where, none in _steps(lists, k, v):
                keys, content = (y[where].to(dtype).flatten(0, 2) for y in (k, v))
                row, head, slots = where
                index = ((row * k.shape[1] + head) * k.shape[2] + slots).flatten()
                query, g = (y[:, :, at].to(dtype).flatten(0, 2) for y in (q, of))
                weights = _weights(query, keys, none, scale)
                accumulate(dv, index, (weights[..., None] * g[:, None]).flatten(0, 1))
                slope = (content @ g[..., None])[..., 0]
                slope = weights * (slope - (weights * slope).sum(-1, keepdim=True)) * scale
                dq[:, :, at] = (slope[:, None] @ keys).view(*q.shape[:2], -1, q.shape[3])
                accumulate(dk, index, (slope[..., None] * query[:, None]).flatten(0, 1))
    return dq, dk.view(k.shape), dv.view(v.shape)


listed = operator("listed", forward, backward, fake=_blank, wrt=("q", "k", "v"))
