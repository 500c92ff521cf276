"""Softmax that may attend to nothing."""

import math
from collections.abc import Mapping
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.dense import Dense, reference_softmax
from regard.bias import ScoreBias
from regard.engines.dense import Rule, publish, softmax
from regard.engines.dense.fused import average_once, bias_logits, fused, logits_once, tiles
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports


@final
class SoftmaxPlusOne(Dense):
    """Softmax with more below the line: p_ij = exp(z_ij) / (num_null + sum_r exp(z_ir)), z_ij = q_i . k_j / sqrt(d).

    The weights of a row sum to less than 1, so that a head may say nothing. It equals a softmax over `num_null` more
    keys of logit 0 and value 0. A bias is added to real keys only.

    Cost: as `softmax`. State: every key and value; the null keys are no slots.

    Args:
        heads: what to serve.
        num_null: the null keys; 1 is the source's form.
        scale: of the logits; None: 1/sqrt(key_dim).

    Raises:
        ConfigError: `num_null` below 1, or a scale that is not positive.

    Example:
        >>> from regard import Heads
        >>> q, v = torch.zeros(1, 1, 3, 8), torch.ones(1, 1, 3, 8)
        >>> SoftmaxPlusOne(Heads(count=1, key_dim=8))(q, q, v).values[0, 0, 0, 0]
        tensor(0.7500)

    Source: Miller 2023, "Attention is off by one".
    """

    info = Info(
        title="Softmax plus one",
        source="Miller 2023, Attention is off by one",
        supports=Supports(
            causal=True,
            bidirectional=True,
            cross=True,
            key_mask=True,
            bias=True,
            state=True,
            prefix=True,
            dropout=True,
        ),
        state="length",
        rows_sum_to_one=False,
        sees_content_only=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"num_null": 3, "scale": 0.5})

    def __init__(self, heads: Heads, *, num_null: int = 1, scale: float | None = None) -> None:
        super().__init__(heads, num_null=num_null, scale=scale)
        if num_null < 1:
            raise ConfigError(f"softmax_plus_one needs num_null of at least 1, got {num_null}; softmax has none")
        if scale is not None and scale <= 0:
            raise ConfigError(f"softmax_plus_one needs a positive scale, got {scale}; None is 1/sqrt(key_dim)")
        self.num_null, self.scale = num_null, scale
        factor = self.factor = heads.key_dim**-0.5 if scale is None else scale
        self.rule = publish(
            f"softmax_plus_one({num_null}, {factor!r})",
            Rule(lambda q, k: (q * factor) @ k.mT, lambda logits: softmax(logits, num_null)),
        )

    def average(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None, bias: ScoreBias | None) -> Tensor:
        """One query at once; plain calls by the fused kernel on real null keys; others from the log-sum-exp."""
        queries, keys, causal, scale = q.shape[2], k.shape[2], self.heads.causal, self.factor
        if self.dropped or keys == 0:
            return super().average(q, k, v, key_mask=key_mask, bias=bias)
        if queries == 1:
            logits = logits_once(q * scale, k)
            if bias is not None:
                logits = logits + bias_logits(bias, 1, keys, causal=causal, like=logits)
            return average_once(logits, v, key_mask, nulls=self.num_null)
        if bias is not None or (causal and queries != keys):
            values, lse = tiles(q, k, v, scale=scale, causal=causal, key_mask=key_mask, bias=bias)
            # sum exp(z) / (num_null + sum exp(z)) of the softmax's own output: the null keys are merged once.
            return values * torch.sigmoid(lse - math.log(self.num_null))[..., None].to(values.dtype)
        # The null keys come first, so that every query sees them; null queries keep a causal call square.
        k, v = (F.pad(x, (0, 0, self.num_null, 0)) for x in (k, v))
        q = F.pad(q, (0, 0, self.num_null, 0)) if causal else q
        key_mask = None if key_mask is None else F.pad(key_mask, (self.num_null, 0), value=True)
        values = fused(q, k, v, scale=scale, causal=causal, key_mask=key_mask, bias=None, dropout=0.0)
        return values[:, :, self.num_null :] if causal else values

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        bias: ScoreBias | None = None,
        marks: Tensor | None = None,
    ) -> Tensor:
        """Every logit, then exp(z) over num_null plus their sum."""
        del marks
        logits = self.factor * torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(self.heads.group, 1))
        causal, nulls = self.heads.causal, float(self.num_null)
        return reference_softmax(logits, v, causal=causal, key_mask=key_mask, bias=bias, nulls=nulls)
