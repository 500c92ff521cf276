"""Tasks: examples with a known answer, reached at random, the same for everybody."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

if TYPE_CHECKING:
    from regard.text.reader import Reader

IGNORE = -100
"""The target of a position that does not count: the `ignore_index` of torch's cross entropy."""

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


class Example(NamedTuple):
    """One sequence.

    inputs: token ids, int64 (length,); or vectors, float32 (length, width). targets: int64, what each position should
    predict, IGNORE where nothing counts; a single one, (1,), is the class of the whole sequence.
    document: number of the document it came from, the unit of a bootstrap; the index itself in synthetic tasks.
    nbytes: UTF-8 bytes that the counted targets stand for, so that bits per byte = nats / ln 2 / nbytes; 0 where they
    stand for none. source: token ids, int64 (source length,), of the other sequence that an encoder-decoder reads; None
    for models of one sequence. marks: int64 (length,), for models with global tokens: s > 0 is a token of segment s, -s
    the global token that summarises it, 0 neither. contents: int64 (length,), where all tokens of a segment are hidden,
    what they were, IGNORE elsewhere. neighbours: int64 (length, k), the tokens of the nearest contexts in a datastore,
    -1 where there is none; distances: float32 (length, k), how far they are. All examples of a task have marks
    (contents, neighbours), or none has.
    """

    inputs: np.ndarray
    targets: np.ndarray
    document: int
    nbytes: int
    source: np.ndarray | None = None
    marks: np.ndarray | None = None
    contents: np.ndarray | None = None
    neighbours: np.ndarray | None = None
    distances: np.ndarray | None = None


@runtime_checkable
class Examples(Protocol):
    """The examples of a split: any one at any time, always the same one for the same index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Example: ...


@runtime_checkable
class Redrawn(Examples, Protocol):
    """Examples whose noise is drawn anew in every epoch of a training; `[index]` is that of epoch 0."""

    def redrawn(self, index: int, epoch: int) -> Example: ...


@runtime_checkable
class Consecutive(Examples, Protocol):
    """Examples that are windows of documents, those of each one behind the other; `begins` are the first of each."""

    @property
    def begins(self) -> Int64[np.ndarray, "documents"]: ...


class Task(ABC):
    """Data with a known answer and the metric that goes with it.

    vocab_size: token ids are 0 .. vocab_size - 1; 0 where inputs are vectors. input_dim: width of vectors, else 0.
    classes: names of what targets count, for tasks that ask for the class of a sequence; empty where targets are token
    ids. length: most positions in an example. tokenizer: of tasks on text. fingerprint: changes whenever any example
    could; what a resumed run compares to know that its data is the same. Behind a + is what was looked up for it.
    """

    name: ClassVar[str]
    metric: ClassVar[Literal["bits_per_byte", "bits_per_dimension", "accuracy"]]
    vocab_size: int
    input_dim: int = 0
    classes: tuple[str, ...] = ()
    length: int
    tokenizer: "Reader | None" = None
    fingerprint: str

    @property
    def num_targets(self) -> int:
        """Targets are 0 .. num_targets - 1."""
        return len(self.classes) or self.vocab_size

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
