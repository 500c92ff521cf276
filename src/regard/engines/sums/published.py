"""Positive random features as the published code of Performer computes them, which leaks the future in causal use."""

import torch
from torch import Tensor

from regard.core import accumulation_dtype
from regard.engines.sums.passes import LOWEST

PAPER_EPSILON = 1e-4
"""added to every feature"""


def published_features(
    q: Tensor, k: Tensor, projection: Tensor, scale: float, key_mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """exp(W x - |x|^2 / 2 - max) + epsilon of q (batch, heads, queries, dim) and k (batch, kv_heads, keys, dim).

    The maxima are those of W x, before |x|^2 / 2 (with an epsilon that changes the result): for a query over its own
    features, for keys over all of them, later ones included. Constant factors, which cancel, are left out.
    """
    dtype = accumulation_dtype(q.dtype)
    with torch.autocast(q.device.type, enabled=False):
        grouped, keys = (x.to(dtype) * scale for x in (q.unflatten(1, (k.shape[1], -1)), k))
        of_q, of_k = (x @ w.to(dtype).mT for x, w in ((grouped, projection[:, None]), (keys, projection)))
        half_q, half_k = (x.square().sum(-1, keepdim=True) / 2 for x in (grouped, keys))
        if key_mask is not None:
            of_k = of_k.masked_fill(~key_mask[:, None, :, None], float("-inf"))
        largest = of_k.flatten(2).amax(-1) if k.shape[2] else of_k.new_zeros(k.shape[:2])
        fq = (of_q - half_q - of_q.amax(-1, keepdim=True)).exp() + PAPER_EPSILON
        fk = (of_k - half_k - largest.clamp_min(LOWEST)[..., None, None]).exp() + PAPER_EPSILON
    return fq.flatten(1, 2), fk
