"""What stands around a decoder, and is called, continued and evaluated as the decoder is."""

from typing import Any

from torch import nn

from regard.models import LanguageModel
from regard.models.decoder import ModelState


class Beside(nn.Module):
    """A decoder with something beside it: all that text is continued by (`regard.models.continuing`) but `hidden` and
    `logits`, as the decoder has it.

    Args:
        model: the decoder.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    @property
    def config(self) -> Any:
        """The decoder's."""
        return self.model.config

    @property
    def limit(self) -> int | None:
        """Longest text, as the decoder's."""
        return self.model.limit

    @property
    def pads(self) -> bool:
        """Whether rows of unequal length share a batch, as the decoder's."""
        return self.model.pads

    @property
    def streams(self) -> bool:
        """Whether every layer has a state, as the decoder's."""
        return self.model.streams

    @property
    def table(self) -> nn.Embedding:
        """As the decoder's."""
        return self.model.table

    @property
    def embeddings(self) -> Any:
        """As the decoder's."""
        return self.model.embeddings

    @property
    def loss_weights(self) -> dict[str, float]:
        """As the decoder's."""
        return self.model.loss_weights

    def initial_state(self, batch: int) -> ModelState:
        """The state before the first token."""
        return self.model.initial_state(batch)
