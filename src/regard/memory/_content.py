"""Attention by content alone, without positions: how memories measure and find."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.core.attention import accumulation_dtype
from regard.engines.dense import expand_heads


def content_weights(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    key_mask: Bool[Tensor, "batch keys"] | None,
) -> Float[Tensor, "batch heads queries keys"]:
    """softmax_j(q_i . k_j / sqrt(dim)) over the real keys, in at least float32; 0 where there is none."""
    q, k = (x.to(accumulation_dtype(x.dtype)) for x in (q, k))
    with torch.autocast(q.device.type, enabled=False):
        logits = q @ expand_heads(k, q.shape[1]).mT * q.shape[-1] ** -0.5
        return masked_softmax(logits, None if key_mask is None else key_mask[:, None, None])


def masked_softmax(
    logits: Float[Tensor, "batch heads queries keys"], keep: Bool[Tensor, "batch #heads #queries keys"] | None
) -> Float[Tensor, "batch heads queries keys"]:
    """The softmax over the keys that are kept; a row without any is 0, with gradient 0."""
    if keep is None or not logits.shape[-1]:
        return logits.softmax(-1)
    some = keep.any(-1, keepdim=True)
    return logits.masked_fill(~keep & some, float("-inf")).softmax(-1) * some


def attention_of(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    key_mask: Bool[Tensor, "batch keys"] | None,
) -> Float[Tensor, "batch heads queries value"]:
    """The averages of the values under `content_weights`."""
    weights = content_weights(q, k, key_mask)
    with torch.autocast(q.device.type, enabled=False):
        return weights @ expand_heads(v.to(weights.dtype), q.shape[1])
