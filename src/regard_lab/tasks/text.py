"""Text: predict the next token of real documents."""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import cached_property
from itertools import chain
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int64, Integer

from regard.core.errors import ConfigError, DataError
from regard.text.reader import Reader
from regard.text.tokenizer import DEFAULT_VOCAB_SIZE, PUBLISHED, Tokenizer, build_tokenizer, ends_of_words
from regard_lab.tasks.base import IGNORE, SPLITS, Example, Split, Task, checked_index
from regard_lab.tasks.config import TextConfig
from regard_lab.tasks.corpus import Corpus, open_corpus
from regard_lab.tasks.stored_windows import BLOCKS_OF_ONE_DOCUMENT, StoredWindows
from regard_lab.tasks.token_files import Tokens, cache_folder, token_files
from regard_lab.tasks.token_store import TokenStore, is_store

_FORMAT = 1
"""Part of the key of token files: raise it when the same corpus would give other tokens or other splits."""
_FILES = "sha256"
"""Part of the key too: raise it when the files are others, so that those of earlier versions are written anew."""

_LOG = logging.getLogger("regard")


class Spans(NamedTuple):
    """Where the targets of windows are: from ids[first] up to ids[stop], in documents from ids[begin] on; and the
    bootstrap unit of each window."""

    begin: Int64[np.ndarray, "windows"]
    first: Int64[np.ndarray, "windows"]
    stop: Int64[np.ndarray, "windows"]
    document: Int64[np.ndarray, "windows"]


class Windows:
    """The documents of a split, cut into windows of `length` targets that never cross from one document to the next.

    A document is stored as separator, text, separator. Window k predicts tokens k length + 1 .. (k + 1) length of it,
    each from the ones before it in the window, so that every byte and the end of each document are predicted exactly
    once, the first byte from the separator. The last window of a document is padded: inputs with the separator, targets
    with IGNORE. Windows much longer than the documents are mostly padding.

    A published tokenizer has no separator: a document is what it makes of the text by itself, and its first token is
    not predicted.

    `Example.document` counts documents. A split of a single document has 20 consecutive blocks of windows instead, so
    that there is something to resample.

    Args:
        tokens: of the split.
        tokenizer: the one that made them.
        length: targets in a window.
    """

    def __init__(self, tokens: Tokens, tokenizer: Reader, length: int):
        self.tokens = tokens
        self.tokenizer = tokenizer
        self.length = length
        counts = -((1 - np.diff(tokens.starts)) // length)  # ceil((tokens - 1) / length)
        self._ends = np.cumsum(counts)
        self._begins = self._ends - counts
        self.num_documents = counts.size if counts.size > 1 else min(BLOCKS_OF_ONE_DOCUMENT, len(self))

    @property
    def begins(self) -> Int64[np.ndarray, "documents"]:
        """The first windows of the documents that have any."""
        return self._begins[self._ends > self._begins]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Example:
        index = checked_index(index, len(self))
        spans = self.spans([index])
        first, stop = int(spans.first[0]), int(spans.stop[0])
        window = self.tokens.ids[first - 1 : stop].astype(np.int64)
        inputs = np.full(self.length, self.tokenizer.filler, np.int64)
        targets = np.full(self.length, IGNORE, np.int64)
        inputs[: window.size - 1] = window[:-1]
        targets[: window.size - 1] = window[1:]
        return Example(inputs, targets, int(spans.document[0]), int(self.sizes(first, stop).sum()))

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    def sizes(self, first: int, stop: int) -> Int64[np.ndarray, "tokens"]:
        """How many bytes each of the tokens from `tokens.ids[first]` up to `tokens.ids[stop]` stands for."""
        if isinstance(self.tokenizer, Tokenizer):
            return self.tokenizer.sizes[self.tokens.ids[first:stop]]
        assert self.tokens.nbytes is not None
        return self.tokens.nbytes[first:stop].astype(np.int64)

    def text(self, begin: int, first: int, stop: int, before: int) -> bytes:
        """The bytes that tokens first .. stop - 1 stand for, behind the `before` bytes in front of them in a document
        that begins with token `begin`; zeros where it has none."""
        if isinstance(self.tokenizer, Tokenizer):
            front = self.tokenizer.to_bytes(self.tokens.ids[max(begin, first - before) : first])
            data = self.tokenizer.to_bytes(self.tokens.ids[first:stop])
        else:
            assert self.tokens.text is not None
            begin, first, stop = (int(self._edges[at]) for at in (begin, first, stop))
            front, data = (
                self.tokens.text[max(begin, first - before) : first].tobytes(),
                self.tokens.text[first:stop].tobytes(),
            )
        return front[max(len(front) - before, 0) :].rjust(before, b"\0") + data

    @cached_property
    def _edges(self) -> Int64[np.ndarray, "tokens+1"]:
        """Where the bytes of each token begin, and the end of the last."""
        return np.concatenate([[0], np.cumsum(self.sizes(0, len(self.tokens.ids)))])

    def place(self, index: int) -> tuple[Integer[np.ndarray, "tokens"], int]:
        """The token ids of the document that a window is of, and the place of the window's first target in it."""
        row = int(np.searchsorted(self._ends, index, side="right"))
        begin, end = (int(at) for at in self.tokens.starts[row : row + 2])
        return self.tokens.ids[begin:end], int(self.spans([index]).first[0]) - begin

    def spans(self, indices: Sequence[int] | Int64[np.ndarray, "windows"]) -> Spans:
        """Where the targets of these windows are in `tokens.ids`."""
        index = np.asarray(indices, np.int64)
        row = np.searchsorted(self._ends, index, side="right")
        number = index - self._begins[row]
        begin = self.tokens.starts[row]
        first = begin + number * self.length + 1
        stop = np.minimum(first + self.length, self.tokens.starts[row + 1])
        document = row if self._ends.size > 1 else index * self.num_documents // len(self)
        return Spans(begin, first, stop, document)


class TextTask(Task):
    """Next-token prediction on text, measured in bits per byte, which does not depend on the tokenizer.

    Splits are by document (bundled addresses: by year; documents with equal text stay together), or, for one file
    of text without a separator, three consecutive parts. They depend on the text and `holdout` alone, not on seed,
    length or tokenizer. Token ids are kept in memory-mapped files, keyed by a hash of the content, the splits and the
    tokenizer.

    Args:
        config: corpus, tokenizer, length.
        tokenizer: an earlier run's, instead of the one that the configuration describes.

    Raises:
        DataError: no such corpus, empty or binary files, malformed lines, too little text.
        ConfigError: options that the corpus has no use for.
        ResourceError: the cache cannot be written.

    Example:
        >>> task = TextTask(TextConfig(corpus="song_ci", length=128))  # doctest: +SKIP
        >>> task.examples("valid")[0].inputs.shape  # doctest: +SKIP
        (128,)
    """

    name: ClassVar[str] = "text"
    metric: ClassVar = "bits_per_byte"

    def __init__(self, config: TextConfig, *, tokenizer: Reader | None = None):
        self.config = config
        self.length = config.length
        self._store: TokenStore | None = None
        if is_store(config.corpus):
            self._stored(config, tokenizer)
            return
        corpus = open_corpus(config)
        if corpus.left_out:
            _LOG.warning("%s: %d file(s) are read%s", corpus.name, len(corpus.paths), corpus.left_out)
        content = _hash(
            _FORMAT, corpus.fingerprint(), corpus.continuous, config.field, config.separator, config.holdout
        )
        key = _hash(_FILES, content, _made_by(config, tokenizer))
        files = token_files(cache_folder(config.cache), key, lambda: _read(config, corpus, tokenizer))
        self.tokenizer: Reader = files.tokenizer
        self.vocab_size = self.tokenizer.vocab_size
        self.fingerprint = _hash(content, self.tokenizer.to_json(), config.length)
        self._tokens = files.splits
        self._require_windows()

    def examples(self, split: Split) -> Windows | StoredWindows:
        if split not in SPLITS:
            raise ConfigError(f"task text: there is no split {split!r}; splits are {', '.join(SPLITS)}")
        if self._store is not None:
            if split not in self._windows:
                self._windows[split] = StoredWindows(self._store, split, self.length)
            return self._windows[split]
        return Windows(self._tokens[split], self.tokenizer, self.length)

    def _stored(self, config: TextConfig, tokenizer: Reader | None) -> None:
        """Read a token store in place of text."""
        _require_unsaid(config, tokenizer)
        self._store = TokenStore.open(config.corpus)
        self._windows: dict[Split, StoredWindows] = {}
        self.tokenizer = self._store.tokenizer
        if tokenizer is not None and tokenizer.to_json() != self.tokenizer.to_json():
            raise DataError(
                f"{config.corpus} was built with another tokenizer ({self.tokenizer.kind}, SHA-256 "
                f"{self._store.facts.tokenizer.sha256[:12]}...) than what is read with here ({tokenizer.kind}); "
                "build a store with this one: regard tokens build --tokenizer"
            )
        self.vocab_size = self.tokenizer.vocab_size
        self.fingerprint = _hash("store", self._store.digest, config.length)
        for split in SPLITS:
            amount = self._store.amount(split)
            if not amount.documents:
                raise DataError(
                    f"{config.corpus} holds no document of the {split} split, which the hash of each decides: build it "
                    f"of more documents, or with another --holdout than {self._store.facts.holdout}"
                )
        self._require_windows()

    def _require_windows(self) -> None:
        longest = {split: self._longest(split) for split in SPLITS}
        split = min(longest, key=longest.__getitem__)
        if longest[split] <= self.length:
            needed = self.length + 1
            enough = self._store is None and longest["train"] > needed
            share = f" or a larger --task.holdout than {self.config.holdout}" if split != "train" and enough else ""
            shorter = f"set --task.length to {longest[split] - 1} or less, or " if longest[split] > 2 else ""
            raise DataError(
                f"{self.config.corpus} is too small for windows of {self.length} tokens: each takes {needed} tokens of "
                f"one document, and the longest {split} document has {longest[split]} ({self.tokenizer.kind}, with "
                f"what stands at both ends); {shorter}give longer documents{share}"
            )

    def _longest(self, split: Split) -> int:
        if self._store is None:
            return int(np.diff(self._tokens[split].starts).max())
        windows = self.examples(split)
        assert isinstance(windows, StoredWindows)
        return windows.longest


def _require_unsaid(config: TextConfig, tokenizer: Reader | None) -> None:
    """Refuse what was decided when a store was built: ignored, it would look like it worked. A tokenizer that is given
    itself is compared."""
    unsaid = {each.name: each.default for each in fields(TextConfig)}
    names = ["field", "separator", "suffixes", "holdout", "cache"]
    for name in names if tokenizer is not None else ["tokenizer", "vocab_size", *names]:
        given = getattr(config, name)
        if given != unsaid[name]:
            raise ConfigError(
                f"{config.corpus} is a token store, and {name}={given!r} was decided when it was built; leave it out"
            )


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _made_by(config: TextConfig, tokenizer: Reader | None) -> str:
    if tokenizer is not None:
        return tokenizer.to_json()
    if config.tokenizer == PUBLISHED:
        return PUBLISHED
    return f"bpe {config.vocab_size or DEFAULT_VOCAB_SIZE}" if config.tokenizer == "bpe" else "bytes"


def _read(
    config: TextConfig, corpus: Corpus, tokenizer: Reader | None
) -> tuple[Reader, Iterable[tuple[Split, Iterable[str]]]]:
    split_of = corpus.splits(config.holdout)
    splits: list[Split] = [split_of[group] for group in corpus.groups]

    def documents() -> Iterator[tuple[Split, Iterable[str]]]:
        return zip(splits, (one.pieces for one in corpus.stream()), strict=True)

    training = chain.from_iterable(ends_of_words(pieces) for split, pieces in documents() if split == "train")
    return tokenizer or build_tokenizer(config.tokenizer, config.vocab_size, training), documents()
