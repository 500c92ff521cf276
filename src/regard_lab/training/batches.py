"""From examples to tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from regard.core.errors import InputError
from regard.core.state import State
from regard.models.encoder import global_tokens
from regard.models.neighbours import NeighbourTokens
from regard_lab.tasks.base import IGNORE, Example, Examples, Redrawn


@dataclass(frozen=True)
class Batch:
    """Examples side by side; shorter ones are padded on the right.

    ids: of the examples, in their split. inputs: token ids (batch, length) or vectors (batch, length, width).
    targets: one for each position, or one for each example. key_mask: True = real; None if none is padded.
    source, source_mask: of the sequences that an encoder-decoder reads; None without them. marks, contents: as those
    of `Example`, for models that read them. neighbours: of every position, for a model that mixes them in.
    """

    ids: list[int]
    inputs: Shaped[Tensor, "batch length *width"]
    targets: Int[Tensor, "batch targets"]
    key_mask: Bool[Tensor, "batch length"] | None
    documents: list[int]
    nbytes: list[int]
    source: Int[Tensor, "batch keys"] | None = None
    source_mask: Bool[Tensor, "batch keys"] | None = None
    marks: Int[Tensor, "batch length"] | None = None
    contents: Int[Tensor, "batch length"] | None = None
    neighbours: NeighbourTokens | None = None

    @property
    def tokens(self) -> int:
        """Targets that count."""
        return int((self.targets != IGNORE).sum())

    @property
    def sides(self) -> list[int]:
        """Real positions of the inputs, and of the source where there is one."""
        sides = ((self.inputs, self.key_mask), (self.source, self.source_mask))
        return [x.shape[0] * x.shape[1] if mask is None else int(mask.sum()) for x, mask in sides if x is not None]

    @property
    def positions(self) -> int:
        """Real input positions, the source's included."""
        return sum(self.sides)

    def through(self, model: Callable[..., Any], state: State | None = None) -> Any:
        """The output of a model for the batch: an encoder-decoder reads the source too, one with global tokens marks.

        What a model reads is a fact of its mechanisms (`reads_marks`); one that has no global tokens has no use for
        marks, and sees the tokens that they are of like all others. Targets are for a decoder whose exits learn from
        them (`reads_targets`). `state` is the past of a decoder; None: none.
        """
        if state is not None or self.neighbours is not None:
            found = {} if self.neighbours is None else {"neighbours": self.neighbours}
            return model(self.inputs, key_mask=self.key_mask, state=state, **found)
        if self.source is not None:
            return model(self.source, self.inputs, source_mask=self.source_mask, key_mask=self.key_mask)
        if getattr(model, "reads_targets", False):
            return model(self.inputs, key_mask=self.key_mask, targets=self.targets)
        reads = "none" if self.marks is None else getattr(model, "reads_marks", "none")
        if self.marks is None or reads == "none":
            return model(self.inputs, key_mask=self.key_mask)
        if reads == "tokens":
            return model(self.inputs, key_mask=self.key_mask, marks=global_tokens(self.marks))
        contents = {} if self.contents is None else {"contents": self.contents}
        return model(self.inputs, key_mask=self.key_mask, marks=self.marks, **contents)

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        tensors = ("inputs", "targets", "key_mask", "source", "source_mask", "marks", "contents")
        named = {name: getattr(self, name) for name in tensors}
        found = self.neighbours and NeighbourTokens(*(x.to(device) for x in self.neighbours))
        return replace(self, **{n: None if x is None else x.to(device) for n, x in named.items()}, neighbours=found)


def collate(
    examples: Examples,
    ids: Sequence[int],
    vocab_size: int,
    *,
    num_targets: int | None = None,
    epochs: Sequence[int] | None = None,
) -> Batch:
    """The batch of these examples.

    Args:
        examples: of a split.
        ids: their numbers in the split.
        vocab_size: token ids are below.
        num_targets: targets are below; None: they are token ids.
        epochs: of each example, for those whose noise is drawn anew in every epoch; None: as in the first.

    Raises:
        InputError: a token id outside the vocabulary, a target that is none, or a vector with a value that is not
            finite.
    """
    if epochs is not None and isinstance(examples, Redrawn):
        chosen: list[Example] = [examples.redrawn(index, epoch) for index, epoch in zip(ids, epochs, strict=True)]
    else:
        chosen = [examples[index] for index in ids]
    inputs, key_mask = _padded([example.inputs for example in chosen], 0)
    targets, _ = _padded([example.targets for example in chosen], IGNORE)
    _check(ids, "input", inputs, vocab_size)
    _check(ids, "target", targets, vocab_size if num_targets is None else num_targets, ignored=True)
    source = source_mask = None
    sources = [example.source for example in chosen if example.source is not None]
    if sources:
        source, source_mask = _padded(sources, 0)
        _check(ids, "source", source, vocab_size)
    marks = _labels([example.marks for example in chosen], 0)
    contents = _labels([example.contents for example in chosen], IGNORE)
    neighbours = _labels([example.neighbours for example in chosen], -1)
    distances = _labels([example.distances for example in chosen], 0)
    return Batch(
        list(ids),
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        key_mask,
        [example.document for example in chosen],
        [example.nbytes for example in chosen],
        None if source is None else torch.from_numpy(source),
        source_mask,
        marks,
        contents,
        None if neighbours is None or distances is None else NeighbourTokens(neighbours, distances),
    )


def _padded(rows: Sequence[np.ndarray], filler: int) -> tuple[np.ndarray, Tensor | None]:
    """The rows as one array, and where it is real; None if all of it is."""
    lengths = np.array([len(row) for row in rows])
    longest = int(lengths.max())
    whole = np.full((len(rows), longest, *rows[0].shape[1:]), filler, rows[0].dtype)
    for at, row in enumerate(rows):
        whole[at, : len(row)] = row
    return whole, None if (lengths == longest).all() else torch.from_numpy(np.arange(longest) < lengths[:, None])


def _labels(rows: Sequence[np.ndarray | None], filler: int) -> Tensor | None:
    """The rows as one tensor; None where a task has none."""
    present = [row for row in rows if row is not None]
    return torch.from_numpy(_padded(present, filler)[0]) if present else None


def _check(ids: Sequence[int], what: str, values: np.ndarray, count: int, *, ignored: bool = False) -> None:
    """Refuse what would be an error of the device, or a loss that is not a number."""
    if np.issubdtype(values.dtype, np.floating):
        wrong, allowed = ~np.isfinite(values).all(-1), "finite numbers"
    else:
        wrong = ((values < 0) | (values >= count)) & ~(ignored & (values == IGNORE))
        allowed = f"from 0 to {count - 1}" + (f", or {IGNORE} where nothing is predicted" if ignored else "")
    if wrong.any():
        row, place = (int(x) for x in np.argwhere(wrong)[0])
        raise InputError(f"example {ids[row]}, position {place}: {what} {values[row, place]} must be {allowed}")
