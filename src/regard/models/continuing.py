"""What text is continued by, besides a model alone."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from regard.models.decoder import Hidden
from regard.models.model_state import ModelState


@runtime_checkable
class Continuing(Protocol):
    """What text is continued by: a `LanguageModel`, or what stands around one and does the same."""

    @property
    def limit(self) -> int | None: ...
    @property
    def pads(self) -> bool: ...
    @property
    def streams(self) -> bool: ...
    @property
    def table(self) -> torch.nn.Embedding: ...

    embeddings: Any

    def initial_state(self, batch: int) -> ModelState: ...
    def hidden(
        self,
        tokens: Tensor,
        *,
        key_mask: Tensor | None = None,
        positions: Tensor | None = None,
        state: ModelState | None = None,
    ) -> Hidden: ...
    def logits(self, hidden: Tensor) -> Tensor: ...
    def modules(self) -> Iterator[torch.nn.Module]: ...
