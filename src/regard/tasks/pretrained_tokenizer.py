"""Published tokenizers, special tokens and all, through the `tokenizers` library."""

import json
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64, Integer

from regard.errors import CheckpointError, InputError, kind_of, listed
from regard.tasks.byte_letters import byte_letters
from regard.tasks.reader import Encoded, Reader

if TYPE_CHECKING:
    import tokenizers


_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_CONTEXT = 4
"""tokens before a new one that are decoded with it: as many as a character has bytes"""


class PretrainedTokenizer(Reader):
    """A published tokenizer with its defaults: the special tokens that it adds by itself are added.

    Args:
        model: of the `tokenizers` library.
        vocab_size: ids that the network has, at least as many as the tokenizer; None: the tokenizer's.

    Raises:
        CheckpointError: tokens that the network does not have; all are listed.

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
            raise CheckpointError(
                f"the tokenizer has ids that the network has not, whose vocabulary ends at {self.vocab_size - 1}:"
                + listed(f"{at}: {name!r}" for at, name in beyond)
            )
        parts = json.loads(model.to_str())
        self.limits = {name: parts[name] for name in ("truncation", "padding")}
        """settings of its file that hold for those who read batches of it"""
        model.no_truncation()
        model.no_padding()
        self._model = model
        self._missing: frozenset[int] = frozenset()
        self._special = frozenset(token["id"] for token in parts["added_tokens"] if token["special"])
        self.byte_ids: frozenset[int] = frozenset()
        """tokens of tokenizers with byte fallback that stand for one byte, such as <0x0A>"""
        if "ByteFallback" in json.dumps(parts["decoder"]):
            self.byte_ids = frozenset(names[name] for name in names if re.fullmatch("<0x[0-9A-Fa-f]{2}>", name))
        if "ByteLevel" in json.dumps(parts["pre_tokenizer"]) and parts["model"].get("unk_token") not in names:
            self._missing = frozenset(byte for byte, letter in enumerate(byte_letters()) if letter not in names)

    def encode(self, text: str, *, added: bool = True) -> Int64[np.ndarray, "length"]:
        """The ids of a text.

        Args:
            text: special tokens that are written out in it are these tokens.
            added: with the special tokens that the tokenizer adds by itself.

        Raises:
            InputError: half a surrogate pair, or bytes that the vocabulary has no token for; all are listed.
            CheckpointError: the tokenizer lacks what it needs for this text.
        """
        self._check(text)
        return np.array(self._encoding(text, added=added).ids, np.int64)

    def document(self, text: str) -> Encoded:
        """The ids of a text and the bytes they stand for; errors as `encode`."""
        self._check(text)
        encoding = self._encoding(text)
        # bytes up to each character; the tokens of one character all span it, and the first of them counts its bytes
        widths = np.array([len(character.encode()) for character in text], np.int64)
        reached = np.concatenate([[0], np.cumsum(widths)])
        ends = np.array([end for _, end in encoding.offsets], np.int64).reshape(-1)
        seen = np.maximum.accumulate(reached[ends]) if ends.size else reached[:0]
        return Encoded(np.array(encoding.ids, np.int64), np.diff(seen, prepend=0))

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

    def shown(self, ids: Integer[np.ndarray, "length"] | Sequence[int]) -> list[int]:
        """The ids without special tokens, which have no text; errors as `checked`."""
        return [at for at in self.checked(ids).tolist() if at not in self._special]

    def stream(self, after: Integer[np.ndarray, "past"] | Sequence[int] = ()) -> "PretrainedStream":
        """A decoder for ids that arrive one after the other, behind those of `after`."""
        return PretrainedStream(self, self.shown(after))

    def to_json(self) -> str:
        model = json.loads(self._model.to_str())
        return json.dumps({"kind": self.kind, "vocab_size": self.vocab_size, "model": model}, ensure_ascii=False)


class PretrainedStream:
    """Decodes ids that arrive one after the other: what they add to the text before them, once no later id changes it.

    A tokenizer may decode a token differently behind others (a leading space), so some tokens before the new ones are
    decoded with them. Tokens that stand for one byte come out when another kind of token follows: the decoder of such
    tokenizers shows none of a run of bytes if some of it are no UTF-8.

    Args:
        tokenizer: whose ids they are.
        after: ids whose text was shown before.
    """

    def __init__(self, tokenizer: PretrainedTokenizer, after: list[int]) -> None:
        self._tokenizer = tokenizer
        self._start_behind(after)

    def feed(self, ids: Integer[np.ndarray, "length"] | Sequence[int]) -> str:
        """The text that these ids complete."""
        self._ids += self._tokenizer.shown(ids)
        text = self.pending
        if not text or self._ids[-1] in self._tokenizer.byte_ids:
            return ""
        self._start_behind(self._ids)
        return text

    def finish(self) -> str:
        """The rest of the text: U+FFFD for an unfinished character. The stream can be used again, for another text."""
        rest = self._new()
        self._start_behind([])
        return rest

    @property
    def pending(self) -> str:
        """The text that has not come yet, if its last character is whole."""
        text = self._new()
        return "" if text.endswith(_UNFINISHED) else text

    def _new(self) -> str:
        before, text = (self._tokenizer.decode(ids) for ids in (self._ids[: self._shown], self._ids))
        return text[len(os.path.commonprefix([before, text])) :]  # noqa: RUF071  # of characters

    def _start_behind(self, ids: list[int]) -> None:
        """Keep the last of the ids that were shown, as many as have some text of their own."""
        reader, count = self._tokenizer, _CONTEXT
        while count < len(ids) and (
            ids[-count] in reader.byte_ids or not reader.decode(ids[-count:]).strip(_UNFINISHED + " ")
        ):
            count *= 2
        self._ids = ids[-count:]
        self._shown = len(self._ids)
