"""Keys drawn from the softmax weights of each query, by uniform numbers that are given."""

import torch
from torch import Tensor

ELEMENTS = {"cpu": 1 << 18}
"""numbers in a buffer of scores, 2 MB in float64; 2^25 on other devices"""


@torch.library.custom_op("regard::sampled_keys", mutates_args=())
def sampled_keys(q: Tensor, k: Tensor, uniform: Tensor, key_mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    """For each uniform number the first key j at which sum_{l <= j} softmax_l(scale q_i . k_l) exceeds it.

    In float64: a sum in another order then rounds too little to change a draw.

    Args:
        q, k: (batch, heads, queries, dim), (batch, kv_heads, keys, dim).
        uniform: (heads, queries, samples), in [0, 1): the same for every element of the batch.
        key_mask: (batch, keys), True = keep.
        scale: of the logits.
        causal: lower-right.

    Returns:
        int64 (batch, heads, queries, samples); -1 where a query sees no key.
    """
    (batch, heads, queries), (kv_heads, keys) = q.shape[:3], k.shape[1:3]
    drawn = torch.full((batch, heads, queries, uniform.shape[-1]), -1, dtype=torch.int64, device=q.device)
    if not keys:
        return drawn
    k, past = k.double(), keys - queries if causal else 0
    step = max(1, ELEMENTS.get(q.device.type, 1 << 25) // max(1, batch * heads * keys))
    with torch.autocast(q.device.type, enabled=False):
        for first in range(0, queries, step):
            last = min(first + step, queries)
            seen = past + last if causal else keys
            rows = (q[:, :, first:last].double() * scale).unflatten(1, (kv_heads, -1)).flatten(2, 3)
            odds = (rows @ k[:, :, :seen].mT).view(batch, heads, last - first, seen)
            if causal:
                late = torch.ones(last - first, seen, dtype=torch.bool, device=q.device).triu(past + first + 1)
                odds.masked_fill_(late, float("-inf"))
            if key_mask is not None:
                odds.masked_fill_(~key_mask[:, None, None, :seen], float("-inf"))
            top = odds.amax(-1, keepdim=True)
            odds = odds.sub_(torch.where(top.isneginf(), 0, top)).exp_().cumsum(-1)
            total = odds[..., -1:]
            found = torch.searchsorted(odds, uniform[:, first:last] * total, right=True).clamp_max(seen - 1)
            drawn[:, :, first:last] = torch.where(total > 0, found, -1)
    return drawn


@sampled_keys.register_fake
def _(q: Tensor, k: Tensor, uniform: Tensor, key_mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    return q.new_empty((*q.shape[:3], uniform.shape[-1]), dtype=torch.int64)
