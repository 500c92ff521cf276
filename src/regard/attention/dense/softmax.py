"""Scaled dot-product attention."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Gt
from torch import Tensor

from regard.attention.dense import Dense, reference_softmax
from regard.core import Attended, Call
from regard.engines.dense import dot_product, tiles
from regard.info import Info, Supports


@final
class Softmax(Dense):
    """Softmax of scaled dot products: o_i = sum_j softmax_j(scale q_i . k_j) v_j, scale = 1/sqrt(d).

    Cost: O(queries keys dim) time, O(length) memory: above 2^20 pairs the weights never exist as one tensor, unless the
    bias does. State: every key and value.

    Example:
        >>> from regard import Heads
        >>> q = torch.randn(1, 2, 5, 8)
        >>> Softmax(Heads(count=2, key_dim=8, causal=True))(q, q, q).values.shape
        torch.Size([1, 2, 5, 8])

    Source: Vaswani et al. 2017, Eq. 1.
    """

    default_info = Info(
        title="Scaled dot-product",
        source="Vaswani et al. 2017, Eq. 1",
        supports=Supports.all(but=("marks",)),
        state="length",
        sees_content_only=True,
        mergeable=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"scale": 0.7, "impl": "chunks"}, {"impl": "tiles"})

    scale: Annotated[float, Gt(0)] | None = None
    """of the logits; None: 1/sqrt(key_dim), the paper's"""
    impl: Literal["auto", "reference", "torch", "tiles", "chunks"] = "auto"
    """`torch` is its fused kernel, `tiles` the tile engine, without dropout, `chunks` the dense engine, `reference` the
    definition; `auto` is `torch`, except above 2^20 pairs: `chunks` with dropout, else `tiles` with a bias by distance
    or with leading keys"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """The tile engine has no dropout."""
        supports = replace(cls.default_info.supports, dropout=options["impl"] != "tiles")
        return replace(cls.default_info, supports=supports)

    @property
    def factor(self) -> float:
        """What the inner products are multiplied by."""
        return self.heads.key_dim**-0.5 if self.scale is None else self.scale

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """By the fastest path that keeps memory linear; the log-sum-exp by the tile engine."""
        if call.lse and not self.dropped:
            values, lse = tiles(q, k, v, call, scale=self.factor)
            return Attended(values, call.state, lse=lse)
        values = dot_product(q, k, v, call, scale=self.factor, dropout=self.dropped, impl=self.impl)
        lse = tiles(q, k, v, call, scale=self.factor)[1] if call.lse else None
        return Attended(values, call.state, lse=lse)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every logit, then the softmax of each row."""
        logits = self.factor * torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(self.heads.group, 1))
        return reference_softmax(logits, v, call)
