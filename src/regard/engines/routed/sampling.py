"""Keys drawn from the softmax weights of each query, by uniform numbers that are given."""

import torch
from torch import Tensor

from regard.engines.operator import without_gradient
from regard.engines.routed.lists import doubled_scores


@without_gradient(
    "sampled_keys",
    fake=lambda q, k, uniform, *_: q.new_empty((*q.shape[:3], uniform.shape[-1]), dtype=torch.int64),
)
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
    drawn = torch.full((*q.shape[:3], uniform.shape[-1]), -1, dtype=torch.int64, device=q.device)
    if k.shape[2]:
        for at, odds in doubled_scores(q, k, key_mask, causal, scale):
            top = odds.amax(-1, keepdim=True)
            odds = odds.sub_(torch.where(top.isneginf(), 0, top)).exp_().cumsum(-1)
            total, last = odds[..., -1:], odds.shape[-1] - 1
            picked = torch.searchsorted(odds, uniform[:, at] * total, right=True).clamp_max(last)
            drawn[:, :, at] = torch.where(total > 0, picked, -1)
    return drawn
