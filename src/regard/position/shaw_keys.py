"""Relative positions of Shaw, on the keys."""

from typing import final

import torch
from torch import Tensor, nn

from regard.core.attention import generator
from regard.core.bias import ScoreBias
from regard.core.errors import ConfigError
from regard.core.info import Heads
from regard.position._base import Position


@final
class ShawKeys(Position):
    """Scores q_i . (k_j + a_ij) / sqrt(key_dim), a_ij = P[clip(j - i, -w, w) + w], with a learned table P.

    `table` is P^K of the paper and `max_distance` its k, our w; all heads share the table. The second term becomes a
    bias by distance, so any mechanism with biases takes it, and nothing of size queries x keys x dim exists. Distances
    beyond w are one label, which is how it serves lengths that it was not trained on. The paper's a^V, added to the
    values, belong to a mechanism (`shaw`).

    Causal heads have the w + 1 rows that they use, others 2 w + 1.

    Args:
        heads, dim: as `Position`; `heads.causal` decides the rows.
        max_distance: w; the paper's experiments take 16.
        std: standard deviation of the initial table.

    Raises:
        ConfigError: a negative `max_distance`.

    Source: Shaw et al. 2018, equation 4 and section 3.2.
    """

    title = "Shaw keys"
    biased = True

    def __init__(self, heads: Heads, dim: int, *, max_distance: int = 16, std: float = 0.02) -> None:
        super().__init__(heads, dim)
        if max_distance < 0:
            raise ConfigError(f"position shaw_keys needs max_distance >= 0, got {max_distance}")
        self.max_distance = max_distance
        self.ahead = 0 if heads.causal else max_distance
        rows = max_distance + 1 + self.ahead
        table = torch.randn(rows, heads.query_width, generator=generator(heads.seed, "shaw_keys position"))
        self.table = nn.Parameter(table * std)

    def bias(self, q: Tensor, low: int, high: int) -> ScoreBias:
        """The scaled queries, and the table's row of every distance."""
        row = torch.arange(-high, 1 - low, device=q.device).clamp(-self.max_distance, self.ahead) + self.max_distance
        relative = self.table[row][None].to(q.dtype)
        return ScoreBias(high=high, query=q * self.heads.key_dim**-0.5, relative=relative)
