"""Sigmoid attention with the bias of its paper, which counts the keys of the whole call."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.dense import Scaled, inner_products, masked_logits
from regard.core.attention import Attended, Call, accumulation_dtype
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.engines.dense import Rule, publish


@final
class SigmoidPublished(Scaled):
    """Sigmoid of each logit: w_ij = sigmoid(scale q_i . k_j + c - log n), not normalised; scale = 1/sqrt(d).

    n counts the real keys of the whole call, later ones included, so in causal use early outputs depend on how long the
    sequence is, and there is no state. `sigmoid`, the strictly causal mechanism, counts the keys that a query may see;
    where every query sees every key the two are the same.

    Cost: O(queries keys dim) time; memory of one chunk of queries x keys.

    Example:
        >>> from regard import Heads
        >>> q, v = torch.zeros(1, 1, 4, 8), torch.ones(1, 1, 4, 1)
        >>> attention = SigmoidPublished(Heads(count=1, key_dim=8, value_dim=1, causal=True))
        >>> attention(q, q, v).values.flatten()
        tensor([0.2000, 0.4000, 0.6000, 0.8000])

    Source: Ramapuram et al. 2024, Theory, Analysis, and Best Practices for Sigmoid Self-Attention, Eqs. 2 and 3.
    """

    default_info = Info(
        title="Sigmoid as published",
        source="Ramapuram et al. 2024, Sigmoid Self-Attention, Eqs. 2 and 3",
        supports=Supports.all(but=("marks", "state")),
        state="none",
        rows_sum_to_one=False,
        sees_content_only=True,
        leaks=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"offset": 0.5, "learned": True},
        {"scale": 0.7, "offset": -0.5},
    )
    reasons: ClassVar[Mapping[str, str]] = {"state": "it counts the keys of the whole sequence"}

    offset: float = 0.0
    """c, where it starts if it is learned"""
    learned: bool = False
    """whether c is a weight, `shift`, of each query head"""
    shift: nn.Parameter = weight()

    def setup(self) -> None:
        offset = self.offset
        if self.learned:
            self.shift = nn.Parameter(torch.full((self.heads.count,), float(offset)))
        self.rule = publish(
            f"sigmoid_published({offset!r})",
            Rule(lambda q, k, *shift: q @ k.mT + (shift[0][:, None, None] if shift else offset), torch.sigmoid),
        )

    def weights(self) -> list[Tensor]:
        """c of each head, where it is learned."""
        return [self.shift] if self.learned else []

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The average; log n is one more column of the inner product."""
        q = q.to(accumulation_dtype(q.dtype)) * self.factor
        mask, one = call.key_mask, q.new_ones(*q.shape[:3], 1)
        count = k.shape[2] * one if mask is None else mask.sum(1)[:, None, None, None] * one
        q = torch.cat([q, -count.clamp(min=1).log()], -1)
        return super().average(q, F.pad(k, (0, 1), value=1.0), v, call)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """1 / (1 + n exp(-z)) for every pair that is allowed."""
        shift = self.shift[:, None, None] if self.learned else self.offset
        logits = masked_logits(inner_products(q, k) * self.factor + shift, call)
        allowed = ~logits.isneginf()
        count = k.shape[2] if call.key_mask is None else call.key_mask.sum(1)[:, None, None, None]
        odds = logits.masked_fill(~allowed, 0.0) - torch.as_tensor(count, dtype=logits.dtype).clamp(min=1).log()
        weights = torch.where(allowed, torch.exp(-torch.logaddexp(-odds, torch.zeros_like(odds))), 0.0)
        return weights @ v.repeat_interleave(self.heads.group, 1)
