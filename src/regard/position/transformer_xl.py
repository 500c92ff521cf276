"""Relative positions of Transformer-XL."""

from typing import final

import torch
from torch import Tensor, nn

from regard.core.attention import generator
from regard.core.bias import ScoreBias
from regard.core.info import Heads
from regard.position._base import Position, sinusoidal_code


@final
class TransformerXl(Position):
    """Scores (q_i + u) . k_j + (q_i + v) . W_R r_{i-j}, all times 1/sqrt(key_dim).

    r is the sinusoid of the distance, W_R (`relative`) is learned, u (`content`) and v (`distance`) are learned and
    replace the query where the paper drops absolute positions. The second term becomes a bias by distance; nothing of
    size queries x keys x dim exists. Give the same module to every layer to share u and v.

    Args:
        heads, dim: as `Position`; r has width `dim`.
        std: standard deviation of the initial u and v.

    Source: Dai et al. 2019, section 3.3.
    """

    title = "Transformer-XL relative"
    transforms = True
    biased = True

    def __init__(self, heads: Heads, dim: int, *, std: float = 0.02) -> None:
        super().__init__(heads, dim)
        draw = generator(heads.seed, "transformer_xl position")
        shape = (heads.count, heads.key_dim)
        self.content = nn.Parameter(torch.randn(shape, generator=draw) * std)
        self.distance = nn.Parameter(torch.randn(shape, generator=draw) * std)
        self.relative = nn.Parameter(torch.randn(heads.count, dim, heads.key_dim, generator=draw) * dim**-0.5)

    def transform(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Adds u to the queries; keys know no position."""
        del query_positions, key_positions
        return q + self.content[:, None].to(q.dtype), k

    def bias(self, q: Tensor, low: int, high: int) -> ScoreBias:
        """(q + v) and W_R r for every distance."""
        distance = torch.arange(high, low - 1, -1, device=q.device)
        r = sinusoidal_code(distance, self.dim, layout="halves").to(q.dtype)
        query = (q + self.distance[:, None].to(q.dtype)) * self.heads.key_dim**-0.5
        return ScoreBias(high=high, query=query, relative=r @ self.relative.to(q.dtype))
