"""Attention within clusters of equal size: each centroid takes the queries and the keys that are nearest to it."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.engines.routed import exact
from regard.precision import accumulation_dtype


@torch.no_grad()
def ranked(
    x: Float[Tensor, "batch heads length dim"], centroids: Float[Tensor, "kv_heads clusters dim"]
) -> Int[Tensor, "batch heads clusters length"]:
    """The place of each vector in the order in which each centroid takes them, the largest x . mu first.

    In float32; of equal ones the earlier first. Heads of a group share their centroids.
    """
    with exact(x):
        points = centroids.float().repeat_interleave(x.shape[1] // len(centroids), 0)
        scores = points @ x.float().mT
    return scores.argsort(dim=-1, descending=True, stable=True).argsort(-1)


def taken(
    ranks: Int[Tensor, "batch heads clusters length"], mask: Bool[Tensor, "batch length"] | None
) -> tuple[Int[Tensor, "batch heads clusters size"], Bool[Tensor, "batch heads clusters size"]]:
    """The slots that each centroid takes, in their order in the sequence, and which of these places are filled.

    Of r real tokens each of c centroids takes r / c, rounded up.
    """
    clusters, length = ranks.shape[2:]
    size = -(-length // clusters)
    if mask is None:
        return ranks.topk(size, largest=False).indices.sort(-1).values, torch.ones_like(ranks[..., :size]).bool()
    first = ranks.masked_fill(~mask[:, None, None], length).topk(size, largest=False, sorted=True)
    share = (mask.sum(1) + clusters - 1) // clusters
    filled = (first.values < length) & (torch.arange(size, device=ranks.device) < share[:, None, None, None])
    slots = first.indices.masked_fill(~filled, length).sort(-1).values
    return slots.clamp(max=length - 1), slots < length


def clustered(
    q: Float[Tensor, "batch heads length dim"],
    k: Float[Tensor, "batch heads length dim"],
    v: Float[Tensor, "batch heads length value"],
    query_ranks: Int[Tensor, "batch heads clusters length"],
    key_ranks: Int[Tensor, "batch heads clusters length"],
    mask: Bool[Tensor, "batch length"] | None,
    scale: float,
    *,
    causal: bool,
    share: bool,
) -> Float[Tensor, "batch heads length value"]:
    """The mean over the clusters that took a query of the softmax over the keys that they took; 0 for one in none.

    Args:
        q, k, v: queries, keys, values of the same tokens.
        query_ranks, key_ranks: what `ranked` returned for them.
        mask: True = real; the others are taken by no centroid.
        scale: of the logits.
        causal: earlier slots and its own only.
        share: a query counts itself only where a cluster gives it no other key.
    """
    dtype, shape = accumulation_dtype(v.dtype), v.shape
    (asking, asks), (answering, answers) = taken(query_ranks, mask), taken(key_ranks, mask)
    query, key, value = _rows(q.to(dtype), asking), _rows(k.to(dtype), answering), _rows(v.to(dtype), answering)
    distance = asking[..., :, None] - answering[..., None, :]
    seen = asks[..., :, None] & answers[..., None, :]
    if causal:
        seen = seen & (distance >= 0)
    if share:
        others = seen & (distance != 0)
        seen = torch.where(others.any(-1, keepdim=True), others, seen)
    with exact(q):
        logits = (query * scale @ key.mT).masked_fill(~seen, float("-inf"))
        met = seen.any(-1, keepdim=True)
        means = torch.where(met, logits, 0.0).softmax(-1) @ value * met
    # Sums in one order at every run, on a GPU too, where adding by index has none.
    places = torch.arange(shape[0] * shape[1], device=q.device).view(*shape[:2], 1, 1) * shape[2] + asking
    rows, filled = places.flatten(), asks.flatten().to(dtype)
    sums = value.new_zeros(shape[:3].numel(), shape[3]).index_put((rows,), means.flatten(0, 3), accumulate=True)
    times = value.new_zeros(shape[:3].numel()).index_put((rows,), filled, accumulate=True)
    return (sums / times.clamp(min=1)[:, None]).view(shape).to(v.dtype)


def _rows(x: Tensor, slots: Tensor) -> Tensor:
    """(batch, heads, clusters, size, width): the rows of x at these slots."""
    return (
        x[:, :, None]
        .expand(-1, -1, slots.shape[2], -1, -1)
        .gather(3, slots[..., None].expand(*slots.shape, x.shape[3]))
    )
