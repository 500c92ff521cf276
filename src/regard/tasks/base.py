"""What a task is: examples with a known answer, reached at random, the same for everybody."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from regard.tasks.tokenizer import Tokenizer

IGNORE = -100
"""The target of a position that does not count: the `ignore_index` of torch's cross entropy."""

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


class Example(NamedTuple):
    """One sequence.

    inputs: int64 (length,). targets: int64 (length,), what each position should predict, IGNORE where nothing counts.
    document: which document it came from, the unit of a bootstrap; the index itself in synthetic tasks.
    nbytes: UTF-8 bytes that the counted targets stand for, so that bits per byte = nats / ln 2 / nbytes; 0 in synthetic
    tasks.
    """

    inputs: np.ndarray
    targets: np.ndarray
    document: int
    nbytes: int


@runtime_checkable
class Examples(Protocol):
    """The examples of a split: any one at any time, always the same one for the same index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Example: ...


class Task(ABC):
    """Data with a known answer and the metric that goes with it.

    vocab_size: token ids are 0 .. vocab_size - 1. length: positions in every example. tokenizer: of tasks on text.
    fingerprint: changes whenever any example could; what a resumed run compares to know that its data is the same.
    """

    name: ClassVar[str]
    metric: ClassVar[Literal["bits_per_byte", "accuracy"]]
    vocab_size: int
    length: int
    tokenizer: "Tokenizer | None" = None
    fingerprint: str

    @abstractmethod
    def examples(self, split: Split) -> Examples:
        """The examples of a split; no document or sequence is in two splits."""


def checked_index(index: int, count: int) -> int:
    """`index` if it is one of 0 .. count - 1.

    Raises:
        IndexError: otherwise; negative indices too, which would make a sampler's mistake look like data.
    """
    if not 0 <= index < count:
        raise IndexError(f"example {index} of {count}: indices run from 0 to {count - 1}")
    return index
