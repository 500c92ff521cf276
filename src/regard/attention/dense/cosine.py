"""Cosine attention."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.dense import Dense, reference_softmax
from regard.bias import ScoreBias
from regard.engines.dense.fused import dot_product
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports

EPS = 1e-6
"""norms below it count as it, so that a vector of zeros has cosine 0 with everything"""


def unit(x: Tensor) -> Tensor:
    """x / |x|, computed in at least float32."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1, eps=EPS).to(x.dtype)


@final
class Cosine(Dense):
    """Softmax of scaled cosines: z_ij = g q_i . k_j / (|q_i| |k_j|), one gain g per query head.

    No logit exceeds g, and the lengths of q and k do not matter. The gain is learned as its logarithm, `log_gain`, so
    that it stays positive.

    Cost: as `softmax`. State: every key, divided by its norm, and every value.

    Args:
        heads: what to serve.
        gain: g, where it starts if it is learned.
        learned: whether g is a weight; without weights the mechanism also works in `attend`.

    Raises:
        ConfigError: a gain that is not positive.

    Example:
        >>> from regard import Heads
        >>> q, k, v = torch.randn(3, 1, 1, 5, 8)
        >>> mechanism = Cosine(Heads(count=1, key_dim=8))
        >>> torch.allclose(mechanism(3 * q, k / 2, v).values, mechanism(q, k, v).values, atol=1e-6)
        True

    Source: Graves et al. 2014, Neural Turing Machines, Eqs. 5 and 6; learned gain: Henry et al. 2020.
    """

    info = Info(
        title="Cosine",
        source="Graves et al. 2014, Neural Turing Machines, Eqs. 5 and 6; Henry et al. 2020",
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

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"gain": 3.0, "learned": False})

    def __init__(self, heads: Heads, *, gain: float = 10.0, learned: bool = True) -> None:
        super().__init__(heads, gain=gain, learned=learned)
        if gain <= 0:
            raise ConfigError(f"cosine needs a positive gain, got {gain}")
        self.gain, self.learned = gain, learned
        if learned:
            self.log_gain = nn.Parameter(torch.full((heads.count,), gain).log())

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Times g and divided by their norms; divided by their norms."""
        gain = self.log_gain.exp()[:, None, None] if self.learned else self.gain
        return (unit(q) * gain).to(q.dtype), unit(k)

    def average(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None, bias: ScoreBias | None) -> Tensor:
        """The softmax of their inner products."""
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
        """Every inner product over the product of the two norms, times g, then the softmax of each row."""
        del marks
        k = k.repeat_interleave(self.heads.group, 1)
        q_norm, k_norm = (x.square().sum(-1).sqrt().clamp(min=EPS) for x in (q, k))
        cosines = torch.einsum("bhid,bhjd->bhij", q, k) / (q_norm[..., :, None] * k_norm[..., None, :])
        logits = cosines * (torch.exp(self.log_gain)[:, None, None] if self.learned else self.gain)
        return reference_softmax(logits, v, causal=self.heads.causal, key_mask=key_mask, bias=bias)
