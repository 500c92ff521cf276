"""Published tokenizers, special tokens and all, through the `tokenizers` library."""

import json
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64, Integer

from regard.errors import CheckpointError, InputError, kind_of, listed
from regard.tasks.byte_letters import byte_letters
from regard.tasks.reader import Encoded, Reader

if TYPE_CHECKING:
    import tokenizers


class PretrainedTokenizer(Reader):
    """A published tokenizer with its defaults: the special tokens that it adds by itself are added.

    Args:
        model: of the `tokenizers` library.
        vocab_size: ids that the network has; None: the tokenizer's. Tokens beyond are warned of, and no text that has
            one is encoded.

    Example:
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> words = Tokenizer(models.WordLevel({"to": 0, "be": 1, "?": 2}, "?"))
        >>> words.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> PretrainedTokenizer(words).encode("to be").tolist()
        [0, 1]
    """

    kind = "published"
    filler = 0

    def __init__(self, model: "tokenizers.Tokenizer", vocab_size: int | None = None) -> None:
        names = model.get_vocab(with_added_tokens=True)
        self.vocab_size = max(names.values(), default=-1) + 1 if vocab_size is None else vocab_size
        beyond = sorted((at, name) for name, at in names.items() if at >= self.vocab_size)
        if beyond:
            warnings.warn(
                f"the network has no row for {len(beyond)} tokens of its tokenizer, {beyond[0][0]} ({beyond[0][1]!r}) "
                "the first: a text with one of them is refused",
                stacklevel=2,
            )
        model.no_truncation()
        model.no_padding()
        self._model = model
        parts = json.loads(model.to_str())
        self._missing: frozenset[int] = frozenset()
        if "ByteLevel" in json.dumps(parts["pre_tokenizer"]) and parts["model"].get("unk_token") not in names:
            self._missing = frozenset(byte for byte, letter in enumerate(byte_letters()) if letter not in names)

    def encode(self, text: str, *, added: bool = True, longest: int | None = None) -> Int64[np.ndarray, "length"]:
        """The ids of a text.

        Args:
            text: special tokens that are written out in it are these tokens.
            added: with the special tokens that the tokenizer adds by itself.
            longest: cut the text to so many ids, those that are added included.

        Raises:
            InputError: half a surrogate pair, bytes that the vocabulary has no token for, or tokens that the network
                has no row for; all are listed.
            CheckpointError: the tokenizer lacks what it needs for this text.
        """
        self._check(text)
        encoding = self._encoding(text, added=added)
        if longest is not None and len(encoding) > longest:
            encoding = self._encoding(text, added=False)
            encoding.truncate(max(longest - self._model.num_special_tokens_to_add(is_pair=False), 0))
            encoding = self._model.post_process(encoding)
        return self.checked(encoding.ids)

    def document(self, text: str) -> Encoded:
        """The ids of a text and the bytes they stand for; errors as `encode`."""
        self._check(text)
        encoding = self._encoding(text)
        # bytes up to each character; the tokens of one character all span it, and the first of them counts its bytes
        widths = np.array([len(character.encode()) for character in text], np.int64)
        reached = np.concatenate([[0], np.cumsum(widths)])
        ends = np.array([end for _, end in encoding.offsets], np.int64).reshape(-1)
        seen = np.maximum.accumulate(reached[ends]) if ends.size else reached[:0]
        return Encoded(self.checked(encoding.ids), np.diff(seen, prepend=0))

    def _encoding(self, text: str, *, added: bool = True) -> "tokenizers.Encoding":
        try:
            return self._model.encode(text, add_special_tokens=added)
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(
                f"the tokenizer cannot encode this text, so that its tokenizer.json is damaged or incomplete: {error}"
            ) from error

    def _check(self, text: str) -> None:
        if not isinstance(text, str):
            raise InputError(f"a tokenizer encodes one text, got {kind_of(text)}")
        try:
            absent = sorted(set(text.encode("utf-8")) & self._missing)
        except UnicodeEncodeError as error:
            raise InputError(
                f"text holds half a surrogate pair at character {error.start}; it is no Unicode"
            ) from error
        if absent:
            where = [f"U+{ord(c):04X}" for c in sorted(set(text)) if set(c.encode()) & set(absent)]
            raise InputError(
                f"this tokenizer has no token for the bytes {', '.join(f'0x{byte:02x}' for byte in absent)} of "
                f"{', '.join(where)}; remove these characters"
            )

    def decode(self, ids: Integer[np.ndarray, "length"] | Sequence[int]) -> str:
        """The text of the ids, without special tokens.

        Raises:
            InputError: ids outside 0 .. vocab_size - 1; all are listed.
        """
        return self._model.decode(self.checked(ids).tolist(), skip_special_tokens=True)

    def checked(self, ids: Integer[np.ndarray, "length"] | Sequence[int]) -> Int64[np.ndarray, "length"]:
        """The ids as an array.

        Raises:
            InputError: ids outside 0 .. vocab_size - 1; all are listed.
        """
        array = np.asarray(ids, np.int64).reshape(-1)
        wrong = np.flatnonzero((array < 0) | (array >= self.vocab_size))
        if wrong.size:
            raise InputError(
                f"unknown token ids, this vocabulary runs from 0 to {self.vocab_size - 1}:"
                + listed(f"{array[at]} at position {at}" for at in wrong)
            )
        return array

    def stream(self) -> "PretrainedStream":
        """A decoder for ids that arrive one after the other."""
        return PretrainedStream(self)

    def to_json(self) -> str:
        model = json.loads(self._model.to_str())
        return json.dumps({"kind": self.kind, "vocab_size": self.vocab_size, "model": model}, ensure_ascii=False)


class PretrainedStream:
    """Decodes ids that arrive one after the other: text comes out when its last character is whole.

    A tokenizer may decode a token differently behind others (a leading space), so the tokens of the last piece of text
    are decoded again in front of the new ones.
    """

    def __init__(self, tokenizer: PretrainedTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown = 0

    def feed(self, ids: Integer[np.ndarray, "length"] | Sequence[int]) -> str:
        """The text that these ids complete."""
        self._ids += self._tokenizer.checked(ids).tolist()
        text = self._new()
        if not text or text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        self._ids, self._shown = self._ids[self._shown :], len(self._ids) - self._shown
        return text

    def finish(self) -> str:
        """The rest of the text: U+FFFD for an unfinished character. The stream can be used again."""
        rest = self._new()
        self._ids, self._shown = [], 0
        return rest

    def _new(self) -> str:
        before = self._tokenizer.decode(self._ids[: self._shown])
        return self._tokenizer.decode(self._ids)[len(before) :]
