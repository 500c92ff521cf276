"""From examples to tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import InputError
from regard.tasks.base import IGNORE, Examples


@dataclass(frozen=True)
class Batch:
    """Examples side by side; shorter ones are padded on the right.

    ids: of the examples, in their split. key_mask: True = real token; None if none is padded.
    """

    ids: list[int]
    inputs: Int[Tensor, "batch length"]
    targets: Int[Tensor, "batch length"]
    key_mask: Bool[Tensor, "batch length"] | None
    documents: list[int]
    nbytes: list[int]

    @property
    def tokens(self) -> int:
        """Positions with a target."""
        return int((self.targets != IGNORE).sum())

    @property
    def positions(self) -> int:
        """Real input tokens."""
        return self.inputs.numel() if self.key_mask is None else int(self.key_mask.sum())

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        mask = None if self.key_mask is None else self.key_mask.to(device)
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device), key_mask=mask)


def collate(examples: Examples, ids: Sequence[int], vocab_size: int) -> Batch:
    """The batch of these examples.

    Raises:
        InputError: a token id outside the vocabulary.
    """
    chosen = [examples[index] for index in ids]
    lengths = np.array([len(example.inputs) for example in chosen])
    longest = int(lengths.max())
    inputs = np.zeros((len(chosen), longest), np.int64)
    targets = np.full((len(chosen), longest), IGNORE, np.int64)
    for row, example in enumerate(chosen):
        inputs[row, : len(example.inputs)] = example.inputs
        targets[row, : len(example.targets)] = example.targets
    wrong = (inputs < 0) | (inputs >= vocab_size) | ((targets != IGNORE) & ((targets < 0) | (targets >= vocab_size)))
    if wrong.any():
        row, place = (int(x) for x in np.argwhere(wrong)[0])
        raise InputError(
            f"example {ids[row]}, position {place}: input {inputs[row, place]} and target {targets[row, place]} must "
            f"be token ids from 0 to {vocab_size - 1} (target {IGNORE}: not predicted)"
        )
    key_mask = None if (lengths == longest).all() else torch.from_numpy(np.arange(longest) < lengths[:, None])
    documents, nbytes = [example.document for example in chosen], [example.nbytes for example in chosen]
    return Batch(list(ids), torch.from_numpy(inputs), torch.from_numpy(targets), key_mask, documents, nbytes)
