"""Scaled dot-product attention."""

from typing import Literal, final

import torch
from torch import Tensor

from regard.attention.dense._base import Dense, reference_softmax, scaled_dot_product
from regard.attention.dense._chunks import Rule, publish, softmax
from regard.bias import ScoreBias
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports

MATERIALISED_PAIRS = 1 << 20
"""queries x keys up to which logits may exist as one tensor"""

IMPLS = ("auto", "reference", "torch", "chunks")


@final
class Softmax(Dense):
    """Softmax of scaled dot products: o_i = sum_j softmax_j(scale q_i . k_j) v_j, scale = 1/sqrt(d).

    Cost: O(queries keys dim) time, O(length) memory: the weights never exist as one tensor, except with `dropout` or
    a bias that needs gradients on calls of up to 2^20 pairs. State: every key and value.

    Args:
        heads: what to serve.
        scale: of the logits; None: 1/sqrt(key_dim), the paper's.
        impl: `torch` is its fused kernel for everything. `chunks` recomputes logits in chunks of queries, in bounded
            memory also with dropout and with biases that need gradients. `auto` takes `torch`, and `chunks` for calls
            of more than 2^20 pairs with a bias by distance, dropout, or leading keys. `reference` is the definition.

    Raises:
        ConfigError: an unknown `impl`.

    Example:
        >>> from regard import Heads
        >>> q = torch.randn(1, 2, 5, 8)
        >>> Softmax(Heads(count=2, key_dim=8, causal=True))(q, q, q).values.shape
        torch.Size([1, 2, 5, 8])

    Source: Vaswani et al. 2017, Eq. 1.
    """

    info = Info(
        title="Scaled dot-product",
        source="Vaswani et al. 2017, Eq. 1",
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
        sees_content_only=True,
    )

    def __init__(
        self,
        heads: Heads,
        *,
        scale: float | None = None,
        impl: Literal["auto", "reference", "torch", "chunks"] = "auto",
    ) -> None:
        super().__init__(heads, scale=scale, impl=impl)
        if impl not in IMPLS:
            raise ConfigError(f"softmax has no impl={impl!r}; it has {', '.join(IMPLS)}")
        self.scale = heads.key_dim**-0.5 if scale is None else scale
        self.impl = impl
        factor = self.scale
        self.rule = publish(f"softmax(scale={factor!r})", Rule(lambda q, k: (q * factor) @ k.mT, softmax))

    def average(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None, bias: ScoreBias | None) -> Tensor:
        """By the fastest path that keeps memory linear."""
        if self.impl == "reference":
            return self.reference(q, k, v, key_mask=key_mask, bias=bias)
        if self.impl == "chunks" or (self.impl == "auto" and self._materialises(q, k, bias)):
            return super().average(q, k, v, key_mask=key_mask, bias=bias)
        logits = None
        if bias is not None:
            queries, keys = q.shape[2], k.shape[2]
            first = keys - queries if self.heads.causal else 0
            slots = torch.arange(keys, device=q.device)
            logits = bias.logits(torch.arange(first, first + queries, device=q.device), slots)
        return scaled_dot_product(
            q,
            k,
            v,
            scale=self.scale,
            causal=self.heads.causal,
            key_mask=key_mask,
            bias=logits,
            dropout=self.heads.dropout if self.training else 0.0,
        )

    def _materialises(self, q: Tensor, k: Tensor, bias: ScoreBias | None) -> bool:
        """Whether torch's kernel would make tensors of queries x keys that are too large."""
        queries, keys = q.shape[2], k.shape[2]
        if queries * keys <= MATERIALISED_PAIRS:
            return False
        leading = self.heads.causal and 1 < queries < keys
        return leading or (bias is not None and bias.by_distance) or (self.training and self.heads.dropout > 0)

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
        """Every logit, then the softmax of each row."""
        del marks
        logits = self.scale * torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(self.heads.group, 1))
        return reference_softmax(logits, v, causal=self.heads.causal, key_mask=key_mask, bias=bias)
