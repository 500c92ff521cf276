"""Sigmoid attention: every pair by itself, without a softmax."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from regard.attention.dense import Scaled, inner_products, masked_logits
from regard.core.attention import Attended, Call, accumulation_dtype
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.engines.dense import Rule, publish, visible_count


@final
class Sigmoid(Scaled):
    """Sigmoid of each logit: w_ij = sigmoid(scale q_i . k_j + c - log n_i), not normalised; scale = 1/sqrt(d).

    n_i counts the keys that query i may see, where the paper's bias is b = -log n of the whole sequence: a causal row
    then depends on the past alone. (The paper's is `regard_lab.published.sigmoid_published:SigmoidPublished`.) With
    equal keys of logit 0 and c = 0 a row sums to n / (n + 1). A weight depends on the other keys through their number
    only. A bias is added inside the sigmoid; where it is -inf the key does not count.

    Cost: O(queries keys dim) time; memory of one chunk of queries x keys. State: every key and value.

    Example:
        >>> from regard import Heads
        >>> q, v = torch.zeros(1, 1, 3, 8), torch.ones(1, 1, 3, 8)
        >>> Sigmoid(Heads(count=1, key_dim=8))(q, q, v).values[0, 0, 0, 0]
        tensor(0.7500)

    Source: Ramapuram et al. 2024, Theory, Analysis, and Best Practices for Sigmoid Self-Attention, Eqs. 2 and 3.
    """

    default_info = Info(
        title="Sigmoid",
        source="Ramapuram et al. 2024, Sigmoid Self-Attention, Eqs. 2 and 3",
        supports=Supports.all(but=("marks",)),
        state="length",
        rows_sum_to_one=False,
        sees_content_only=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"offset": 0.5, "learned": True},
        {"scale": 0.7, "offset": -0.5},
    )

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
            f"sigmoid({offset!r})",
            Rule(
                lambda q, k, *shift: q @ k.mT + (shift[0][:, None, None] if shift else offset),
                lambda logits: torch.sigmoid(logits - visible_count(logits).log()),
            ),
        )

    def weights(self) -> list[Tensor]:
        """c of each head, where it is learned."""
        return [self.shift] if self.learned else []

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The average; the scale multiplies the queries."""
        return super().average(q.to(accumulation_dtype(q.dtype)) * self.factor, k, v, call)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """1 / (1 + n exp(-z)) for every pair that is allowed."""
        shift = self.shift[:, None, None] if self.learned else self.offset
        logits = masked_logits(inner_products(q, k) * self.factor + shift, call)
        allowed = ~logits.isneginf()
        count = allowed.sum(-1, keepdim=True).clamp(min=1).to(logits.dtype)
        odds = logits.masked_fill(~allowed, 0.0) - count.log()
        weights = torch.where(allowed, torch.exp(-torch.logaddexp(-odds, torch.zeros_like(odds))), 0.0)
        return weights @ v.repeat_interleave(self.heads.group, 1)
