"""The activations of gated attention units, divided by the length of the call."""

from collections.abc import Mapping
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from regard.attention.dense import Dense, inner_products, masked_logits
from regard.attention.dense.relu_squared import DEVIATION, MEAN, laplace, relu_squared
from regard.core.attention import Attended, Call, accumulation_dtype
from regard.core.info import Info, Supports
from regard.engines.dense import Rule, publish


@final
class ReluSquaredPublished(Dense):
    """Squared ReLU of each logit over the length n of the call: w_ij = f(q_i . k_j / n + b_ij), f = relu(x)^2.

    n counts the real keys of the whole call, later ones included, so in causal use early outputs depend on how long the
    sequence is, and there is no state. `relu_squared` is the strictly causal mechanism.

    Cost: O(queries keys dim) time; memory of one chunk of queries x keys.

    Example:
        >>> from regard import Heads
        >>> q = torch.ones(1, 1, 6, 3)
        >>> attention = ReluSquaredPublished(Heads(count=1, key_dim=3, causal=True))
        >>> [attention(x, x, x).values[0, 0, 0, 0].item() for x in (q[:, :, :3], q)]  # token 0, of 3 tokens and of 6
        [1.0, 0.25]

    Source: Hua et al. 2022, Transformer Quality in Linear Time, section 3; `laplace`: Ma et al. 2022, Mega, Eq. 16.
    """

    default_info = Info(
        title="Squared ReLU as published",
        source="Hua et al. 2022, Transformer Quality in Linear Time, section 3; Ma et al. 2022, Mega, Eq. 16",
        supports=Supports.all(but=("marks", "state")),
        state="none",
        rows_sum_to_one=False,
        sees_content_only=True,
        leaks=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"activation": "laplace"})
    reasons: ClassVar[Mapping[str, str]] = {"state": "it divides by the length of the whole sequence"}

    activation: Literal["relu_squared", "laplace"] = "relu_squared"
    """f; `laplace` is Mega's bounded (1 + erf((x - mean) / (deviation sqrt 2))) / 2"""

    def setup(self) -> None:
        squash = relu_squared if self.activation == "relu_squared" else laplace
        self.rule = publish(f"relu_squared_published({self.activation})", Rule(lambda q, k: q @ k.mT, squash))

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The average; the length divides the queries."""
        mask = call.key_mask
        lengths = max(k.shape[2], 1) if mask is None else mask.sum(1).clamp(min=1)[:, None, None, None]
        return super().average(q.to(accumulation_dtype(q.dtype)) / lengths, k, v, call)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """f of every logit, 0 where it is not allowed."""
        lengths = k.shape[2] if call.key_mask is None else call.key_mask.sum(1).clamp(min=1)[:, None, None, None]
        logits = masked_logits(inner_products(q, k) / lengths, call)
        allowed = ~logits.isneginf()
        x = torch.where(allowed, logits, 0.0)
        squared = x.clamp(min=0).square()
        # the distribution function of a normal variable
        weights = squared if self.activation == "relu_squared" else torch.special.ndtr((x - MEAN) / DEVIATION)
        return torch.where(allowed, weights, 0.0) @ v.repeat_interleave(self.heads.group, 1)
