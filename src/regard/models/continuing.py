"""What text is continued by, besides a model alone."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from regard.core.errors import LimitError
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


def require_room(model: Continuing, ids: Sequence[Tensor], max_new_tokens: int) -> int:
    """The length of the longest prompt, with room behind it for the new tokens.

    Raises:
        LimitError: there is none.
    """
    longest, limit = max((len(x) for x in ids), default=0), model.limit
    if limit is not None and longest + max_new_tokens - 1 > limit:
        raise LimitError(
            f"a prompt of {longest} tokens and max_new_tokens={max_new_tokens} exceed this model's max_length={limit}; "
            f"shorten the prompt, generate at most {max(limit + 1 - longest, 0)} tokens, or build a larger model"
        )
    return longest
