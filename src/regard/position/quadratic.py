"""Quadratic positions: each head looks at a learned offset, as sharply as it learns to."""

from typing import final

import torch
from jaxtyping import Float
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
    Over the two axes of an image: `regard.integrations.convolution`.

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


def quadratic_products(
    alpha: Float[Tensor, " heads"],
    centre: Float[Tensor, "heads axes"],
    queries: Float[Tensor, "queries axes"],
    keys: Float[Tensor, "keys axes"],
) -> tuple[Float[Tensor, "heads queries axes+1"], Float[Tensor, "keys axes+1"]]:
    """Vectors whose products are the quadratic scores over any number of axes, up to a constant of the query.

    q_hi . k_j = -alpha_h |x_j - x_i - centre_h|^2 + alpha_h |x_i + centre_h|^2, with q_hi = alpha_h (2 (x_i +
    centre_h), -1) and k_j = (x_j, |x_j|^2). Distances over several axes are no distances between slots; products need
    none, and nothing of size queries x keys.

    Example:
        >>> import torch
        >>> here = torch.tensor([[2.0]])
        >>> q, k = quadratic_products(torch.ones(1), torch.zeros(1, 1), here, torch.tensor([[2.0], [5.0]]))
        >>> (q @ k.T)[0, 0].diff().item()  # -(5 - 2)^2
        -9.0
    """
    target = queries + centre[:, None]
    q = alpha[:, None, None] * torch.cat([2 * target, -torch.ones_like(target[..., :1])], -1)
    return q, torch.cat([keys, keys.square().sum(-1, keepdim=True)], -1)
