"""Bilinear attention."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from regard.attention.dense import Dense, reference_softmax
from regard.bias import ScoreBias
from regard.core import generator
from regard.engines.dense.fused import dot_product
from regard.info import Heads, Info, Supports


@final
class Bilinear(Dense):
    """Softmax of a bilinear form: z_ij = q_i^T W k_j, without a scale (Luong's "general" score).

    `weight` is W, one per query head. It starts random, with logits of variance 1 on vectors of unit variance. Queries
    and keys may have different widths.

    Cost: as `softmax`, and O(queries query_dim key_dim). State: every key and value.

    Args:
        heads: what to serve.

    Example:
        >>> from regard import Heads
        >>> mechanism = Bilinear(Heads(count=2, key_dim=8, query_dim=6))
        >>> mechanism(torch.randn(1, 2, 3, 6), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)).values.shape
        torch.Size([1, 2, 3, 8])

    Source: Luong et al. 2015, section 3.1, score "general".
    """

    info = Info(
        title="Bilinear",
        source="Luong et al. 2015, section 3.1, general",
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

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({},)
    compares_widths: ClassVar[bool] = True

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        draw = generator(heads.seed, "bilinear")
        drawn = torch.randn(heads.count, heads.query_width, heads.key_dim, generator=draw)
        self.weight = nn.Parameter(drawn * (heads.query_width * heads.key_dim) ** -0.5)

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q^T W, and the keys as they are."""
        return q @ self.weight, k

    def average(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None, bias: ScoreBias | None) -> Tensor:
        """The softmax of the inner products of q^T W and k."""
        q = q.to(k.dtype)  # autocast leaves the dtype of its product
        causal, dropout = self.heads.causal, self.dropped
        return dot_product(q, k, v, scale=1.0, causal=causal, key_mask=key_mask, bias=bias, dropout=dropout)

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
        """The sum over both widths of every pair, then the softmax of each row."""
        del marks
        logits = torch.einsum("bhid,hde,bhje->bhij", q, self.weight, k.repeat_interleave(self.heads.group, 1))
        return reference_softmax(logits, v, causal=self.heads.causal, key_mask=key_mask, bias=bias)
