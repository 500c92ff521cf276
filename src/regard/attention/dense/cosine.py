"""Cosine attention."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Gt
from torch import Tensor, nn

from regard.attention.dense import Dense, inner_products, reference_softmax
from regard.core.attention import Attended, Call, accumulation_dtype
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.features.norms import unit

EPS = 1e-6
"""norms below it count as it, so that a vector of zeros has cosine 0 with everything"""


def direction(x: Tensor) -> Tensor:
    """x / |x|, computed in at least float32."""
    return unit(x.to(accumulation_dtype(x.dtype)), EPS).to(x.dtype)


@final
class Cosine(Dense):
    """Softmax of scaled cosines: z_ij = g q_i . k_j / (|q_i| |k_j|), one gain g per query head.

    No logit exceeds g, and the lengths of q and k do not matter. The gain is learned as its logarithm, so that it stays
    positive.

    Cost: as `softmax`. State: every key, divided by its norm, and every value.

    Example:
        >>> from regard import Heads
        >>> q, k, v = torch.randn(3, 1, 1, 5, 8)
        >>> mechanism = Cosine(Heads(count=1, key_dim=8))
        >>> torch.allclose(mechanism(3 * q, k / 2, v).values, mechanism(q, k, v).values, atol=1e-6)
        True

    Source: Graves et al. 2014, Neural Turing Machines, Eqs. 5 and 6; learned gain: Henry et al. 2020.
    """

    default_info = Info(
        title="Cosine",
        source="Graves et al. 2014, Neural Turing Machines, Eqs. 5 and 6; Henry et al. 2020",
        supports=Supports.all(but=("marks",)),
        state="length",
        sees_content_only=True,
        mergeable=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"gain": 3.0, "learned": False})

    gain: Annotated[float, Gt(0)] = 10.0
    """g, where it starts if it is learned"""
    learned: bool = True
    """whether g is a weight; without weights the mechanism also works in `attend`"""
    log_gain: nn.Parameter = weight()

    def setup(self) -> None:
        if self.learned:
            self.log_gain = nn.Parameter(torch.full((self.heads.count,), self.gain).log())

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Times g and divided by their norms; divided by their norms."""
        gain = self.log_gain.exp()[:, None, None] if self.learned else self.gain
        return (direction(q) * gain).to(q.dtype), direction(k)

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The softmax of their inner products."""
        return self.dot_product(q, k, v, call)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every inner product of vectors over their norms, times g, then the softmax of each row."""
        k = k.repeat_interleave(self.heads.group, 1)
        # Over their largest number before, whose square may be infinite.
        largest = [x.detach().abs().amax(-1, keepdim=True).clamp(min=1) for x in (q, k)]
        parts = q / largest[0], k / largest[1]
        norms = [x.square().sum(-1, keepdim=True).sqrt() for x in parts]
        cosines = inner_products(*(x / y.clamp(min=EPS / z) for x, y, z in zip(parts, norms, largest, strict=True)))
        logits = cosines * (torch.exp(self.log_gain)[:, None, None] if self.learned else self.gain)
        return reference_softmax(logits, v, call)
