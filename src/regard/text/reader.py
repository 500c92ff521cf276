"""What tasks on text read with: a text to token ids and back, and the bytes that each id stands for."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int64, Integer

from regard.core.errors import InputError, listed
from regard.files.writing import save_file

if TYPE_CHECKING:
    from regard.models.generate import TextStream


Ids = Integer[np.ndarray, "_"] | Sequence[int]


class Encoded(NamedTuple):
    """ids of a text, and how many of its UTF-8 bytes each stands for (special tokens: none)."""

    ids: Int64[np.ndarray, "length"]
    nbytes: Int64[np.ndarray, "length"]


class Reader(ABC):
    """Text to token ids and back.

    kind: what it is called in messages and files. vocab_size: ids are below. filler: an id for places without a token,
    which count nowhere.
    """

    kind: ClassVar[str]
    vocab_size: int
    filler: int

    @abstractmethod
    def encode(self, text: str) -> Int64[np.ndarray, "length"]:
        """The ids of a text."""

    @abstractmethod
    def document(self, text: str) -> Encoded:
        """The ids of a whole document, with those that stand at its ends."""

    def in_pieces(self, texts: Iterable[str]) -> Iterator[Encoded]:
        """As `document`, of a text that comes in pieces: in bounded memory where the tokenizer allows it."""
        yield self.document("".join(texts))

    @abstractmethod
    def decode(self, ids: Ids) -> str:
        """The text of the ids."""

    @abstractmethod
    def stream(self, after: Ids = ()) -> "TextStream":
        """A decoder for ids that arrive one after the other; `after`: the ids before them, whose text does not come."""

    def continuation(self, ids: Ids, after: Ids) -> str:
        """The text that ids add to that of the ids before them; decoded alone, a first word may lose its space."""
        stream = self.stream(after)
        return stream.feed(self.checked(ids).tolist()) + stream.finish()

    def checked(self, ids: Ids) -> Int64[np.ndarray, "length"]:
        """The ids as an array.

        Raises:
            InputError: ids outside 0 .. vocab_size - 1; all are listed.
        """
        array = np.asarray(ids, np.int64).reshape(-1)
        wrong = np.flatnonzero((array < 0) | (array >= self.vocab_size))
        if wrong.size:
            raise InputError(
                f"token ids outside the vocabulary; ids of this {self.kind} tokenizer run from 0 to "
                f"{self.vocab_size - 1}; use the tokenizer that made them:"
                + listed(f"{array[at]} at position {at}" for at in wrong)
            )
        return array

    @abstractmethod
    def to_json(self) -> str:
        """Everything about it; `regard.text.tokenizer.tokenizer_from_json` reads it."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, completely or not at all.

        Raises:
            ResourceError: the file cannot be written.
        """
        save_file(Path(path), self.to_json().encode())
