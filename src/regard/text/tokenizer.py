"""Tokenizers: the bytes themselves, or byte-level byte-pair encoding. Every token stands for known bytes."""

import codecs
import json
import logging
import os
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Int64

from regard.core.errors import CheckpointError, ConfigError, DataError, InputError, UnsafeFileError, kind_of
from regard.files.reading import text
from regard.text.byte_letters import byte_letters
from regard.text.pretrained_tokenizer import PretrainedTokenizer, model_of, told
from regard.text.reader import Encoded, Ids, Reader

if TYPE_CHECKING:
    import tokenizers

PUBLISHED = "published"
"""kind of the tokenizers that come with published weights (`regard.text.pretrained_tokenizer`)"""
DEFAULT_VOCAB_SIZE = 4096
"""tokens of bpe, where nothing else is said"""
_LONGEST_WORD = 256
"""Bytes. The time to learn merges grows with the square of the longest word, and some scripts have no spaces."""
_PIECE_CHARACTERS = 1 << 16
"""Characters that are encoded by themselves: part of what BPE makes of a long document."""
_PIECES_AT_ONCE = 16
"""that BPE encodes: bounds its memory, and lets it use every core"""
_LEARNED_CHARACTERS = 1 << 14
"""Characters that BPE learns from at a time, at least, where words end; the library takes 256 such pieces at once."""
_DIFFERENT_BYTES = 1 << 10
"""Bytes of different words that BPE learns each of its tokens from, 4 MiB in all at least; every one takes it 100 bytes
of memory. Most languages have fewer in some gigabytes; without spaces nearly every byte of a text counts."""
_WORD = re.compile(r"\w+|[^\w\s]+")
"""as words are counted there"""
_END_OF_WORD = re.compile(r".*\S(?=[ \n])", re.DOTALL)
_LOG = logging.getLogger("regard")


class Tokenizer(Reader):
    """Text to token ids and back, exactly.

    Each token stands for some bytes, and the UTF-8 bytes of a text are those of its tokens, one after the other. The
    token of byte 0, `separator`, stands before and after every document: text never holds that byte (binary files are
    refused), so no special token is needed and a vocabulary of bytes has 256.

    Args:
        pieces: the bytes of each token.
    """

    def __init__(self, pieces: Sequence[bytes]):
        self.vocab_size = len(pieces)
        self.separator = self.filler = pieces.index(b"\0")
        self.sizes = np.array([len(piece) for piece in pieces], np.int64)
        self._pieces = np.array(pieces, object)

    @abstractmethod
    def _encode(self, texts: Iterable[str]) -> Iterator[Int64[np.ndarray, "length"]]: ...

    def encode(self, text: str) -> Int64[np.ndarray, "length"]:
        """The ids of a text.

        Raises:
            InputError: text that holds U+0000 or half a surrogate pair, which UTF-8 text cannot.
        """
        if not isinstance(text, str):
            raise InputError(f"a tokenizer encodes one text, got {kind_of(text)}")
        if "\0" in text:
            at = text.index("\0")
            raise InputError(f"text holds U+0000 at character {at}; that byte separates documents: remove it")
        try:
            text.encode("utf-8")  # the library would replace half a surrogate pair
        except UnicodeEncodeError as error:
            raise InputError(
                f"text holds half a surrogate pair at character {error.start}; it is no Unicode"
            ) from error
        return np.concatenate([np.empty(0, np.int64), *self._encode(_cut([text], _PIECE_CHARACTERS))])

    def document(self, text: str) -> Encoded:
        """The ids of a text between two separators; errors as `encode`."""
        ids = np.concatenate([[self.separator], self.encode(text), [self.separator]])
        return Encoded(ids, self.sizes[ids])

    def in_pieces(self, texts: Iterable[str]) -> Iterator[Encoded]:
        end = np.array([self.separator], np.int64)
        for ids in chain([end], self._encode(_cut(texts, _PIECE_CHARACTERS)), [end]):
            yield Encoded(ids, self.sizes[ids])

    def to_bytes(self, ids: Ids) -> bytes:
        """The bytes that the ids stand for.

        Raises:
            InputError: ids outside 0 .. vocab_size - 1.
        """
        return b"".join(self._pieces[self.checked(ids)])

    def decode(self, ids: Ids) -> str:
        """The text of the ids; bytes that are no UTF-8 become U+FFFD."""
        return self.to_bytes(ids).decode("utf-8", "replace")

    def nbytes(self, ids: Ids) -> int:
        """How many bytes the ids stand for; a separator is one."""
        return int(self.sizes[self.checked(ids)].sum())

    def stream(self, after: Ids = ()) -> "TextStream":
        """A decoder for ids that arrive one after the other, behind those of `after`."""
        stream = TextStream(self)
        stream.feed(after)
        return stream


class ByteTokenizer(Tokenizer):
    """The UTF-8 bytes of a text are its tokens.

    Example:
        >>> ByteTokenizer().encode("né").tolist()
        [110, 195, 169]
    """

    kind = "bytes"

    def __init__(self):
        super().__init__([bytes([byte]) for byte in range(256)])

    def _encode(self, texts: Iterable[str]) -> Iterator[Int64[np.ndarray, "length"]]:
        return (np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int64) for text in texts)

    def to_bytes(self, ids: Ids) -> bytes:
        return self.checked(ids).astype(np.uint8).tobytes()

    def to_json(self) -> str:
        return json.dumps({"kind": self.kind})


class BpeTokenizer(Tokenizer):
    """Byte-level byte-pair encoding: frequent neighbours become one token, and no byte is unknown.

    Args:
        model: a byte-level BPE of the `tokenizers` library that has all 256 bytes and nothing but bytes.

    Raises:
        DataError: another kind of model.

    Source: Sennrich, Haddow & Birch 2016; on bytes: Radford et al. 2019 (GPT-2), whose splitting into words is used.
    """

    kind = "bpe"

    def __init__(self, model: "tokenizers.Tokenizer"):
        byte_of = {letter: bytes([byte]) for byte, letter in enumerate(byte_letters())}
        names = {index: name for name, index in model.get_vocab().items()}
        try:
            pieces = [b"".join(byte_of[letter] for letter in names[index]) for index in range(len(names))]
            missing = set(byte_of.values()) - set(pieces)
        except KeyError as error:
            raise DataError(f"the tokenizer is no byte-level BPE: it has no token or letter {error}") from error
        if missing:
            raise DataError(
                f"the tokenizer has no token for {len(missing)} of the 256 bytes; train it with all of them"
            )
        super().__init__(pieces)
        self._model = model

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "BpeTokenizer":
        """Learn the merges from texts.

        Args:
            texts: training text only, or the comparison of bits per byte leaks.
            vocab_size: tokens, 256 bytes included.

        Raises:
            ConfigError: a vocabulary too small for the bytes.
            DataError: texts too small for so many tokens.
        """
        from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
        from tokenizers import Tokenizer as Model

        if vocab_size < 256:
            raise ConfigError(f"bpe: vocab_size={vocab_size} is too small; 256 tokens are the bytes themselves")
        model = Model(models.BPE())
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        cut = pre_tokenizers.Split(Regex(f".{{1,{_LONGEST_WORD}}}"), "isolated")
        model.pre_tokenizer = pre_tokenizers.Sequence([words, cut])
        model.decoder = decoders.ByteLevel()
        letters = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=letters, show_progress=True)
        parts = chain.from_iterable(ends_of_words([text]) for text in texts)
        most = _DIFFERENT_BYTES * max(vocab_size, DEFAULT_VOCAB_SIZE)
        model.train_from_iterator(_different(parts, most), trainer)
        learned = model.get_vocab_size()
        if learned < vocab_size:
            raise DataError(
                f"the training text has only enough repeated pairs for {learned} bpe tokens, not {vocab_size}: set "
                f"vocab_size={learned} or less, or give more text"
            )
        return cls(model)

    def _encode(self, texts: Iterable[str]) -> Iterator[Int64[np.ndarray, "length"]]:
        waiting = iter(texts)
        while some := list(islice(waiting, _PIECES_AT_ONCE)):
            with told("the tokenizer cannot encode this text"):
                encodings = self._model.encode_batch_fast(some)
            for encoding in encodings:
                yield np.array(encoding.ids, np.int64)
            del encodings  # before there are more: they take 100 bytes a token

    def to_json(self) -> str:
        return json.dumps({"kind": self.kind, "model": json.loads(self._model.to_str())}, ensure_ascii=False)


def ends_of_words(texts: Iterable[str]) -> Iterator[str]:
    """A text that comes in pieces, cut before white space behind a word, where byte-pair encoding cuts it in any case:
    it learns the same from these. Where a word has no end in so many characters, it is cut too."""
    left = ""
    for piece in _cut(texts, _LEARNED_CHARACTERS):
        left += piece
        if len(left) >= _LEARNED_CHARACTERS:
            end = _END_OF_WORD.match(left)
            at = end.end() if end else len(left)
            yield left[:at]
            left = left[at:]
    if left:
        yield left


def _different(texts: Iterable[str], most: int) -> Iterator[str]:
    """Texts, until they have more than so many bytes of different words."""
    words: set[str] = set()
    nbytes = 0
    for piece in texts:
        if nbytes > most:
            _LOG.warning(
                "bpe learns from the first %.1f MiB of different words only: more take too much memory", nbytes / 2**20
            )
            return
        yield piece
        new = set(_WORD.findall(piece)) - words
        words |= new
        nbytes += len("".join(new).encode())


def _cut(texts: Iterable[str], size: int) -> Iterator[str]:
    """A text that comes in pieces, in pieces of `size` characters; the last may be shorter."""
    left = ""
    for piece in texts:
        left += piece
        whole = len(left) - len(left) % size
        for start in range(0, whole, size):
            yield left[start : start + size]
        left = left[whole:]
    if left:
        yield left


class TextStream:
    """Decodes ids that arrive one after the other into valid text: a character comes out when its last byte is in.

    Pieces and `finish` together give exactly `tokenizer.decode` of all ids; bytes that cannot become a character turn
    into U+FFFD as soon as that is certain, an unfinished one at the end.

    Example:
        >>> stream = ByteTokenizer().stream()
        >>> [stream.feed([byte]) for byte in "é!".encode()], stream.finish()
        (['', 'é', '!'], '')
    """

    pending = ""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Ids) -> str:
        """The text that these ids complete."""
        return self._decoder.decode(self._tokenizer.to_bytes(ids))

    def finish(self) -> str:
        """The text that is left: U+FFFD for an unfinished character. The stream can be used again."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


def build_tokenizer(
    kind: Literal["bytes", "bpe", "published"], vocab_size: int | None, texts: Iterable[str]
) -> Tokenizer:
    """A tokenizer for texts: the bytes, or merges learned from them.

    Args:
        kind: bytes or bpe.
        vocab_size: tokens of bpe; None: 4096.
        texts: training text only; not read for bytes.

    Raises:
        ConfigError: a published one, which no text makes.
        DataError: texts too small for so many tokens.
    """
    if kind == PUBLISHED:
        raise ConfigError(
            "tokenizer=published is that of weights that a training starts from: give these, regard train --from, "
            "or choose bytes or bpe"
        )
    return BpeTokenizer.train(texts, vocab_size or DEFAULT_VOCAB_SIZE) if kind == "bpe" else ByteTokenizer()


def tokenizer_from_json(text: str) -> Reader:
    """The tokenizer that `to_json` described.

    Raises:
        DataError: text that is no such description.
    """
    try:
        description = json.loads(text)
        kind = description["kind"]
        if kind == ByteTokenizer.kind:
            return ByteTokenizer()
        if kind not in (BpeTokenizer.kind, PUBLISHED):
            raise DataError(f"a tokenizer of kind {kind!r}: regard has bytes, bpe and {PUBLISHED}")
        model = json.dumps(description["model"])
        vocab_size = int(description["vocab_size"]) if kind == PUBLISHED else 0
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"no description of a tokenizer: {error!r}") from error
    try:
        read = model_of(model, f"the {kind} tokenizer")
        return PretrainedTokenizer(read, vocab_size) if kind == PUBLISHED else BpeTokenizer(read)
    except (CheckpointError, DataError, UnsafeFileError) as error:
        raise DataError(f"no description of a {kind} tokenizer: {error}") from error


def load_tokenizer(path: str | os.PathLike[str]) -> Reader:
    """Read a tokenizer that `save` wrote.

    Raises:
        CheckpointError: a file that is missing, damaged or of another kind.
    """
    try:
        return tokenizer_from_json(text(Path(path)))
    except OSError as error:
        raise CheckpointError(f"cannot read the tokenizer {path}: {error.strerror}") from error
    except (UnicodeDecodeError, DataError) as error:
        raise CheckpointError(
            f"the tokenizer {path} is damaged: {error}; restore it from the run that wrote it"
        ) from error
