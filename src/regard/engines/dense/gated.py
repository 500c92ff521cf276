"""Causal softmax of inner products whose pairs get the sum of the log gates behind their key, in linear memory."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.core.attention import Call, accumulation_dtype
from regard.engines.dense.chunks import Rule, chunked, publish, softmax
from regard.engines.dense.fused import expand_heads
from regard.engines.tiles import masked_attention, pair_sums, tiled_attention
from regard.patterns import causal

FEW_QUERIES = 16
"""fewer take all pairs as one tensor, no larger than the keys; a tile of 64 queries would be mostly padding"""


def _score(q: Tensor, k: Tensor, distances: Tensor, log_gates: Tensor) -> Tensor:
    first = int(distances[0, 0])  # from key 0
    so_far = log_gates[..., : first + q.shape[2]]
    # In float64: which keys a mask or a bias hides is not known yet, and the sums of the others may all be large.
    return q @ k.mT + pair_sums(so_far, first, q.shape[2], k.shape[2])


def _average(weights: Tensor, v: Tensor, _distances: Tensor, _log_gates: Tensor) -> Tensor:
    return weights.to(v.dtype) @ v


GATED = publish("inner product and log gates", Rule(_score, softmax, depth=4, relative=True, average=_average))


def gated_dot_product(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    log_gates: Float[Tensor, "batch heads slots"],
    call: Call,
    *,
    scale: float,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "batch heads queries value"], Float[Tensor, "batch heads queries"] | None]:
    """softmax_j(scale q_i . k_j + sum_{j < r <= i} g_r + bias) v over the allowed keys; a row without any gives 0.

    A few queries take all pairs at once, more the tile engine, with dropout the dense engine.

    Args:
        log_gates: g of every slot from key 0 to the last key or query, at most 0; -inf: no query from there on sees a
            key before it.
        call: its mask, bias and slots; causal.
        scale: of the inner products.
        dropout: of the weights.

    Returns:
        (values, lse of the logits; None with dropout, unless asked for).
    """
    if dropout:
        wide = q.to(accumulation_dtype(q.dtype)) * scale
        k_each, v_each = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
        values = chunked(GATED, wide, k_each, v_each, call, [log_gates], dropout=dropout)
        return values, _gated(q, k, v, log_gates, call, scale)[1] if call.lse else None
    return _gated(q, k, v, log_gates, call, scale)


def _gated(q: Tensor, k: Tensor, v: Tensor, log_gates: Tensor, call: Call, scale: float) -> tuple[Tensor, Tensor]:
    first, queries, keys = call.query_start, q.shape[2], k.shape[2]
    if not keys or not queries or queries >= FEW_QUERIES:
        masks = {"key_mask": call.key_mask, "bias": call.bias}
        return tiled_attention(q, k, v, causal, scale=scale, query_positions=first, log_gates=log_gates, **masks)
    i, j = torch.arange(first, first + queries, device=q.device), torch.arange(keys, device=q.device)
    allowed = (j <= i[:, None])[None, None]
    if call.key_mask is not None:
        allowed = allowed & call.key_mask[:, None, None]
    bias = None if call.bias is None else call.bias.logits(i, j)
    sums = pair_sums(log_gates, first, queries, keys)
    return masked_attention(q, k, v, allowed, scale=scale, bias=bias, sums=sums)
