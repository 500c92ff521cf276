"""Softmax of inner products in linear memory: torch's fused kernel where it applies, our engines elsewhere."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from regard.core.attention import Call, accumulation_dtype
from regard.core.compiling import exporting
from regard.engines.dense.chunks import Rule, chunked, publish, softmax
from regard.engines.kernels import forced_engine
from regard.engines.tiles import tiled_attention
from regard.patterns import causal, everything

MATERIALISED_PAIRS = 1 << 20
"""queries x keys up to which logits may exist as one tensor"""
LANES = 16
"""float32 numbers in the widest vector of a CPU"""

INNER = publish("inner product", Rule(lambda q, k: q @ k.mT, softmax))


def dot_product(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    call: Call,
    *,
    scale: float,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads queries value"]:
    """softmax(scale q k^T + bias) v over the allowed keys; a row without any gives 0.

    Args:
        call: its mask, bias and slots; keys and values under the mask are 0.
        scale: of the logits; positive.
        dropout: of the weights.
    """
    match choose(q.shape[2], k.shape[2], call, dropout):
        case "fused":
            return fused(q, k, v, call, scale=scale, dropout=dropout)
        case "tiles":
            assert not dropout
            return tiles(q, k, v, call, scale=scale)[0]
        case _:
            q = q.to(accumulation_dtype(q.dtype)) * scale
            k, v = expand_heads(k, q.shape[1]), expand_heads(v, q.shape[1])
            return chunked(INNER, q, k, v, call, dropout=dropout)


def dot_product_with_nulls(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    call: Call,
    *,
    scale: float,
    nulls: int,
) -> Float[Tensor, "batch heads queries value"]:
    """`dot_product` over `nulls` more keys of logit 0 and value 0, which every query sees; at least one key is real.

    One query at once; plain calls by the fused kernel on real null keys; others from the log-sum-exp.
    """
    queries, keys = q.shape[2], k.shape[2]
    if queries == 1:
        logits = logits_once(q * scale, k)
        if call.bias is not None:
            logits = logits + bias_logits(call, 1, keys, like=logits)
        return average_once(logits, v, call.key_mask, nulls=nulls)
    if call.bias is not None or (call.causal and queries != keys):
        values, lse = tiles(q, k, v, call, scale=scale)
        # sum exp(z) / (nulls + sum exp(z)) of the softmax's own output: the null keys are merged once.
        return values * torch.sigmoid(lse - math.log(nulls))[..., None].to(values.dtype)
    # The null keys come first, so that every query sees them; null queries keep a causal call square.
    k, v = (F.pad(x, (0, 0, nulls, 0)) for x in (k, v))
    q = F.pad(q, (0, 0, nulls, 0)) if call.causal else q
    key_mask = None if call.key_mask is None else F.pad(call.key_mask, (nulls, 0), value=True)
    values = fused(q, k, v, call._replace(key_mask=key_mask), scale=scale, dropout=0.0)
    return values[:, :, nulls:] if call.causal else values


def choose(queries: int, keys: int, call: Call, dropout: float) -> str:
    """The fastest engine that makes no tensor of more than 2^20 queries x keys, unless the caller brought one.

    The fused kernel, except on larger calls with dropout (`chunks`), and with a bias by distance or leading keys
    (`tiles`).
    """
    engine = forced_engine()
    if engine in ("fused", "chunks") or (engine == "tiles" and not dropout):
        return engine
    by_distance = call.bias is not None and call.bias.by_distance
    leading = call.causal and 1 < queries < keys
    if not (dropout or by_distance or leading):
        return "fused"
    # An exported graph serves every length, so it does not ask for this one.
    if not exporting() and queries * keys <= MATERIALISED_PAIRS:
        return "fused"
    return "chunks" if dropout else "tiles"


def tiles(
    q: Tensor, k: Tensor, v: Tensor, call: Call, *, scale: float
) -> tuple[Float[Tensor, "batch heads queries value"], Float[Tensor, "batch heads queries"]]:
    """(values, lse) by the tile engine."""
    if q.shape[2] == 0:
        return v.new_zeros(*q.shape[:3], v.shape[3]), q.new_zeros(q.shape[:3])
    pattern = causal if call.causal else everything
    first = call.query_start if call.causal or call.bias is not None else 0  # one layout wherever the queries stand
    return tiled_attention(q, k, v, pattern, scale=scale, query_positions=first, key_mask=call.key_mask, bias=call.bias)


def fused(q: Tensor, k: Tensor, v: Tensor, call: Call, *, scale: float, dropout: float) -> Tensor:
    """By torch's kernel, in forms that keep it from falling back to materialised weights.

    It wants keys and values of one width, so the narrower ones get zero columns. Its own causal flag is upper-left and
    excludes a mask: it serves square calls, with a key mask as one more column of the inner product; other causal calls
    take a mask of queries x keys. Dropout, and a bias that needs gradients, make it materialise the weights.
    """
    queries, keys, width = q.shape[2], k.shape[2], v.shape[-1]
    square = False
    if call.causal and call.query_start == 0 and queries == keys > 1 and call.bias is None:  # asked: as `grouped` below
        square = True
    if square and call.key_mask is not None:
        # q.k + 1 * (0 or lowest): a column instead of queries x keys. A query without keys averages values that are 0;
        # -inf would do, but leaves NaN in the gradient of the column, which trips anomaly detection.
        lowest = torch.finfo(k.dtype).min / 2
        column = torch.zeros(call.key_mask.shape, dtype=k.dtype, device=k.device).masked_fill(~call.key_mask, lowest)
        q = torch.cat([q, q.new_ones(*q.shape[:3], 1)], -1)
        k = torch.cat([k, column[:, None, :, None].expand(-1, k.shape[1], -1, -1)], -1)
    wide = max(q.shape[-1], width)
    if q.shape[-1] < wide:
        q, k = F.pad(q, (0, wide - q.shape[-1])), F.pad(k, (0, wide - k.shape[-1]))
    if width < wide:
        v = F.pad(v, (0, wide - width))
    mask = None if square else _mask(q, keys, call)
    grouped = False
    if q.shape[1] != k.shape[1]:  # asked, since the kernel takes no symbol of a compiler
        grouped = True
    values = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=square,
        scale=scale,
        enable_gqa=grouped,
    )
    if q.device.type == "cpu" and not exporting() and keys < LANES:  # an export serves every length
        values = _lost(values, q, k, mask, scale=scale, causal=square)
    return values if width == wide else values[..., :width]


def _lost(values: Tensor, q: Tensor, k: Tensor, mask: Tensor | None, *, scale: float, causal: bool) -> Tensor:
    """The answers with NaN in the rows of which a logit is NaN or too large.

    Of fewer keys than lanes torch takes the maximum without NaN, and answers rows of NaN alone with 0.
    """
    if not torch.compiler.is_compiling() and not bool((values == 0).all(-1).any()):
        return values
    with torch.no_grad():
        wide = accumulation_dtype(q.dtype)
        logits = scale * (q.to(wide) @ expand_heads(k, q.shape[1]).to(wide).mT)
        if causal:
            hidden = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            logits = logits.masked_fill(hidden, 0)
        elif mask is not None:
            logits = logits.masked_fill(~mask, 0) if mask.dtype == torch.bool else logits + mask.to(wide)
        lost = (logits.isnan() | logits.isposinf()).any(-1, keepdim=True)
    return values.masked_fill(lost, float("nan"))


def _mask(q: Tensor, keys: int, call: Call) -> Tensor | None:
    """The visible pairs as the kernel takes them: boolean, or logits."""
    queries = q.shape[2]
    allowed = None if call.key_mask is None else call.key_mask[:, None, None, :]
    if call.causal and (queries > 1 or call.query_start + 1 < keys):
        lower = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(call.query_start)
        allowed = lower if allowed is None else allowed & lower
    if call.bias is None:
        return allowed
    logits = bias_logits(call, queries, keys, like=q)
    return logits if allowed is None else torch.where(allowed, logits, float("-inf"))


def bias_logits(call: Call, queries: int, keys: int, *, like: Tensor) -> Float[Tensor, "b h queries keys"]:
    """The bias of a call as one tensor."""
    assert call.bias is not None
    i, j = (torch.arange(n, device=like.device) for n in (queries, keys))
    return call.bias.logits(i + call.query_start, j).to(like.dtype)


def expand_heads(x: Float[Tensor, "batch kv_heads keys dim"], count: int) -> Float[Tensor, "batch heads keys dim"]:
    """Keys or values repeated for every query head of their group."""
    return x if x.shape[1] == count else x.repeat_interleave(count // x.shape[1], 1)


def average_once(
    logits: Float[Tensor, "batch heads 1 keys"],
    v: Float[Tensor, "batch kv_heads keys value"],
    key_mask: Bool[Tensor, "batch keys"] | None,
    *,
    nulls: float = 0.0,
) -> Float[Tensor, "batch heads 1 value"]:
    """sum_j exp(z_j) v_j / (nulls + sum_j exp(z_j)) for one query, without repeating grouped values."""
    if key_mask is not None:
        logits = logits.masked_fill(~key_mask[:, None, None, :], float("-inf"))
    group = logits.shape[1] // v.shape[1]
    grouped = softmax(logits, nulls).reshape(v.shape[0], v.shape[1], group, v.shape[2])
    return (grouped.to(v.dtype) @ v).reshape(*logits.shape[:3], v.shape[-1])


def logits_once(
    q: Float[Tensor, "batch heads 1 dim"], k: Float[Tensor, "batch kv_heads keys dim"]
) -> Float[Tensor, "batch heads 1 keys"]:
    """Inner products of one query with every key, without repeating grouped keys."""
    wide = accumulation_dtype(q.dtype)
    grouped = q.reshape(q.shape[0], k.shape[1], q.shape[1] // k.shape[1], q.shape[-1])
    return (k.to(wide) @ grouped.to(wide).mT).mT.reshape(*q.shape[:3], k.shape[2])
