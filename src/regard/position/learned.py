"""Learned absolute positions."""

from typing import final

import torch
from torch import Tensor, nn

from regard.core.attention import generator
from regard.core.errors import ConfigError, LimitError
from regard.core.info import Heads
from regard.position._base import Position


@final
class Learned(Position):
    """Adds row P_i of a learned table (max_length, dim) to the hidden state of slot i.

    With `per_layer` a model has a table P^(l) for each block l, whose row P^(l)_i is added to what enters the block,
    the residual stream included: that of the first block stands with the embeddings, the others in their blocks. A
    layer that stands alone has a table of its own in any case.

    Args:
        heads, dim: as `Position`; `heads.max_length` is the number of rows.
        std: standard deviation of the initial rows.
        per_layer: one table for each block of a model, instead of one for its embeddings.

    Raises:
        ConfigError: no `max_length`.
        LimitError: (on use) a position that the table does not have, below 0 too.

    Source: Gehring et al. 2017, section 3.1; `per_layer`: Al-Rfou et al. 2018, section 3.
    """

    title = "Learned"
    absolute = True
    sized = True

    def __init__(self, heads: Heads, dim: int, *, std: float = 0.02, per_layer: bool = False) -> None:
        super().__init__(heads, dim)
        self.per_layer = per_layer
        if heads.max_length is None:
            raise ConfigError("position learned needs max_length: its table has one row for every position")
        table = torch.randn(heads.max_length, dim, generator=generator(heads.seed, "learned position"))
        self.table = nn.Parameter(table * std)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """`x` plus the table's rows."""
        # Only shapes and sizes are looked at when compiling; the index itself is checked in eager mode.
        if not torch.compiler.is_compiling() and positions.numel():
            low, high = (int(x) for x in positions.aminmax())
            if low < 0 or high >= len(self.table):
                raise LimitError(
                    f"position learned was built for max_length={len(self.table)}, got positions {low} to {high}; "
                    "build it with a larger max_length, or use a scheme without a table (sinusoidal, rotary, alibi)"
                )
        return x + self.table[positions]
