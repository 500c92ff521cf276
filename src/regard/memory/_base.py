"""What a layer remembers of earlier segments, as hidden states."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor


class Memory(ABC):
    """Hidden states of the past that a layer reads as leading keys. The content is a tensor, passed in and out."""

    @abstractmethod
    def initial(
        self, batch: int, dim: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The content before the first segment."""

    @abstractmethod
    def read(self, memory: Tensor) -> Float[Tensor, "batch past dim"]:
        """The remembered hidden states, oldest first, cut from the autograd graph."""

    @abstractmethod
    def write(self, memory: Tensor, x: Float[Tensor, "batch length dim"]) -> Tensor:
        """The content after a segment with the layer inputs `x`."""
