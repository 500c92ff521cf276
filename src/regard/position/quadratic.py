"""Quadratic positions: each head looks at a learned offset, as sharply as it learns to."""

from typing import final

import torch
from torch import Tensor, nn

from regard.core.attention import generator
from regard.core.bias import ScoreBias
from regard.core.info import Heads
from regard.position._base import Position


@final
class Quadratic(Position):
    """Adds -alpha_h (j - i - centre_h)^2 to the logit of query slot i and key slot j.

    The paper's v_h . r_delta with delta = j - i, r_delta = (delta^2, delta), v_h = -alpha_h (1, -2 centre_h), less the
    constant alpha_h centre_h^2: the same softmax, and the logit where the head looks is 0, so that nothing is rounded
    there. A Gaussian of variance 1 / (2 alpha) around the centre; a large alpha picks one slot, as a convolution does.

    Args:
        heads, dim: as `Position`; centres of causal heads begin in the past.
        alpha: every head's initial alpha.
        std: standard deviation of the initial centres.

    Source: Cordonnier, Loukas, Jaggi 2020, section 3, Lemma 2.
    """

    title = "Quadratic"
    biased = True

    def __init__(self, heads: Heads, dim: int, *, alpha: float = 1.0, std: float = 1.0) -> None:
        super().__init__(heads, dim)
        centre = std * torch.randn(heads.count, generator=generator(heads.seed, "quadratic position"))
        self.alpha = nn.Parameter(torch.full((heads.count,), float(alpha)))
        self.centre = nn.Parameter(-centre.abs() if heads.causal else centre)

    def bias(self, q: Tensor, low: int, high: int) -> ScoreBias:
        """One parabola per head."""
        wide = torch.promote_types(q.dtype, torch.float32)
        relative = torch.arange(-high, 1 - low, device=q.device, dtype=wide)
        alpha, centre = self.alpha[:, None].to(wide), self.centre[:, None].to(wide)
        return ScoreBias(high=high, curve=(-alpha * (relative - centre).square()).to(q.dtype))
