"""The memory of Transformer-XL: the most recent hidden states."""

from typing import final

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.memory._base import Memory


@final
class Recent(Memory):
    """Keeps the last `length` inputs of the layer; h~ = [SG(memory); h].

    Args:
        length: positions to keep.

    Raises:
        ConfigError: `length` below 1.

    Source: Dai et al. 2019, section 3.2.
    """

    def __init__(self, *, length: int = 512) -> None:
        if length < 1:
            raise ConfigError(f"memory recent keeps at least one position, got length={length}")
        self.length = length

    def initial(
        self, batch: int, dim: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """No hidden states yet."""
        return torch.zeros(batch, 0, dim, device=device, dtype=dtype)

    def read(self, memory: Tensor) -> Tensor:
        """All of it, detached: no gradient reaches earlier segments."""
        return memory.detach()

    def write(self, memory: Tensor, x: Tensor) -> Tensor:
        """The last `length` of what was kept and what came."""
        return torch.cat([memory, x.detach()], 1)[:, -self.length :]
