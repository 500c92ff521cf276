"""Exact softmax beside the sums of a kernel."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.engines.tiles import masked_attention, tiled_attention
from regard.patterns import Pattern

EXPLICIT_QUERIES = 16
"""up to this many queries on a state, the mask itself: laying out tiles for every length would cost more"""


def exact_average(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    pattern: Pattern,
    key_mask: Bool[Tensor, "batch keys"] | None,
    *,
    explicit: bool,
    scale: float | None = None,
) -> tuple[Float[Tensor, "batch heads queries value"], Float[Tensor, "batch heads queries"]]:
    """(values, lse) of softmax over the keys that a pattern allows; its queries are the last positions.

    Args:
        explicit: by the mask itself, not by tiles.
        scale: of the logits; None: 1 / sqrt(dim).
    """
    if not explicit:
        return tiled_attention(q, k, v, pattern, scale=scale, key_mask=key_mask)
    queries, keys = q.shape[2], k.shape[2]
    allowed = pattern.mask(*(torch.arange(first, keys, device=q.device) for first in (keys - queries, 0)))
    allowed = allowed if key_mask is None else allowed & key_mask[:, None, None, :]
    return masked_attention(q, k, v, allowed, scale=q.shape[3] ** -0.5 if scale is None else scale)
