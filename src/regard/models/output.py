"""What a decoder gives."""

from typing import NamedTuple

from torch import Tensor

from regard.models.model_state import ModelState


class ModelOutput(NamedTuple):
    """logits: (batch, length, vocab_size). state: only if one was passed. losses: in training only, unweighted. steps:
    (batch, length), of a depth that decides for every token how many it takes."""

    logits: Tensor
    state: ModelState | None
    losses: dict[str, Tensor]
    steps: Tensor | None = None


class Hidden(NamedTuple):
    """hidden: (batch, length, dim), what the output layer reads. each: blocks that a step is. The others: as
    `ModelOutput`."""

    hidden: Tensor
    state: ModelState | None
    losses: dict[str, Tensor]
    steps: Tensor | None = None
    each: int = 1

    @property
    def blocks(self) -> Tensor | None:
        """Blocks that every token took, (batch, length), of a depth that decides."""
        return self.steps if self.steps is None or self.each == 1 else self.steps * self.each
