"""Causal linear attention by Triton kernels."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.core.attention import accumulation_dtype
from regard.engines.gpu.linear_triton import causal_average
from regard.engines.sums.passes import empty_sum, turned
from regard.engines.sums.step import Averaged, step
from regard.features.maps import FeatureMap


def average(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    sum: Float[Tensor, "batch kv_heads features columns"] | None,
    maps: tuple[FeatureMap, FeatureMap],
    *,
    key_mask: Bool[Tensor, "batch keys"] | None,
    rotation: Float[Tensor, "2 keys pairs"] | None,
    normalise: bool,
) -> Averaged:
    """`kernel_average` for causal heads without log weights. Features are made in q's dtype.

    Args:
        q, k, v, sum, key_mask, rotation, normalise: as `kernel_average`.
        maps: of queries and of keys.
    """
    sum, past = empty_sum(k, v, maps[1]) if sum is None else sum, k.shape[2] - q.shape[2]
    sum = sum.to(accumulation_dtype(q.dtype))
    if q.shape[2] <= 1 and k.shape[2] <= 1:
        return step(q, k, v, sum, None, maps, 1.0, normalise, None, None, key_mask, rotation)
    with torch.autocast(q.device.type, enabled=False):
        (fq, _), (fk, _) = maps[0].scaled(q, None), maps[1].scaled(k, None)
        if rotation is not None:
            fq, fk = turned(fq, rotation[:, past:].to(fq.dtype)), turned(fk, rotation.to(fk.dtype))
        if key_mask is not None:
            fk = fk * key_mask[:, None, :, None]
        if past:  # leading keys are as good as a state
            before = torch.nn.functional.pad(v[:, :, :past].to(sum.dtype), (0, 1), value=1.0)
            sum = sum + fk[:, :, :past].to(sum.dtype).mT @ before
            fk, v = fk[:, :, past:], v[:, :, past:]
        if not q.shape[2]:
            values, total = v.new_empty(*q.shape[:3], v.shape[3]), sum.new_empty(q.shape[:3])
        else:
            values, total, sum = causal_average(fq, fk, v, sum, normalise)
    return Averaged(values, total, total.new_empty(0), sum, total.new_empty(0))
