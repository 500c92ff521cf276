"""Scaled dot-product attention."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from regard.attention.dense import Dense, reference_softmax
from regard.bias import ScoreBias
from regard.engines.dense.fused import dot_product
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports

IMPLS = ("auto", "reference", "torch", "tiles", "chunks")


@final
class Softmax(Dense):
    """Softmax of scaled dot products: o_i = sum_j softmax_j(scale q_i . k_j) v_j, scale = 1/sqrt(d).

    Cost: O(queries keys dim) time, O(length) memory: above 2^20 pairs the weights never exist as one tensor, unless the
    bias does. State: every key and value.

    Args:
        heads: what to serve.
        scale: of the logits; None: 1/sqrt(key_dim), the paper's.
        impl: `torch` is its fused kernel, `tiles` the tile engine, `chunks` the dense engine, `reference` the
            definition; `tiles` and `reference` have no dropout. `auto` is `torch`, except above 2^20 pairs: `chunks`
            with dropout, else `tiles` with a bias by distance or with leading keys.

    Raises:
        ConfigError: an unknown `impl`, or a scale that is not positive.

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

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"scale": 0.7, "impl": "chunks"},
        {"impl": "tiles"},
    )

    @classmethod
    def facts(cls, **options: object) -> Info:
        """The definition makes every weight; it and the tile engine have no dropout."""
        impl = options.get("impl", "auto")
        if impl not in ("tiles", "reference"):
            return cls.info
        supports = replace(cls.info.supports, dropout=False)
        return replace(cls.info, supports=supports, memory=2 if impl == "reference" else 1)

    def __init__(
        self,
        heads: Heads,
        *,
        scale: float | None = None,
        impl: Literal["auto", "reference", "torch", "tiles", "chunks"] = "auto",
    ) -> None:
        super().__init__(heads, scale=scale, impl=impl)
        if impl not in IMPLS:
            raise ConfigError(f"softmax has no impl={impl!r}; it has {', '.join(IMPLS)}")
        if scale is not None and scale <= 0:
            raise ConfigError(f"softmax needs a positive scale, got {scale}; None is 1/sqrt(key_dim)")
        self.scale, self.impl = scale, impl
        self.factor = heads.key_dim**-0.5 if scale is None else scale

    def average(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None, bias: ScoreBias | None) -> Tensor:
        """By the fastest path that keeps memory linear."""
        if self.impl == "reference":
            return self.reference(q, k, v, key_mask=key_mask, bias=bias)
        return dot_product(
            q,
            k,
            v,
            scale=self.factor,
            causal=self.heads.causal,
            key_mask=key_mask,
            bias=bias,
            dropout=self.dropped,
            impl=self.impl,
        )

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
        logits = self.factor * torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(self.heads.group, 1))
        return reference_softmax(logits, v, causal=self.heads.causal, key_mask=key_mask, bias=bias)
