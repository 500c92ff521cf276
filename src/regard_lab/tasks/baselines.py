"""Baselines of a model: an n-gram model and xz, on exactly the bytes that the models are measured on."""

import lzma
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from regard.core.errors import ConfigError, UnsupportedError
from regard_lab.tasks.base import Split, Task
from regard_lab.tasks.stored_windows import StoredWindows
from regard_lab.tasks.text import TextTask, Windows

_LONGEST_GRAM = 7
"""Longest n-gram: 8 bytes would not fit a signed 64-bit code."""
_TOKENS_AT_ONCE = 1 << 20
"""read and counted at a time"""


class Coded(NamedTuple):
    """bits: to code each document. nbytes: bytes coded of each document. Both are indexed by `Example.document`.

    xz has one entry for all documents together.
    """

    bits: Float64[np.ndarray, "documents"]
    nbytes: Int64[np.ndarray, "documents"]

    @property
    def bits_per_byte(self) -> float:
        return float(self.bits.sum() / self.nbytes.sum())


class ByteNGram:
    """Interpolated Kneser-Ney model of bytes.

    p_k(s | c) = max(n_k(c s) - d_k, 0) / n_k(c .) + d_k t_k(c) / n_k(c .) p_{k-1}(s | c without its first byte)

    with p_0 = 1 / 256. n_k counts occurrences at the highest order, and below it the different bytes seen before the
    k-gram; t_k(c) is the number of different bytes seen after c; d_k = n1 / (n1 + 2 n2) with n1 and n2 the k-grams
    counted once and twice. A context never seen leaves p_{k-1}. For every context the 256 probabilities sum to 1.

    A k-gram is a code: its last byte in the lowest 8 bits, earlier bytes above, so that codes of one context are
    neighbours when sorted and masking drops the first byte. Time: sorting the training text; memory: 3 integers a
    different k-gram, for every k.

    Args:
        codes: of every position of the training text, in pieces.
        order: bytes in the longest n-gram, context and prediction together.

    Source: Kneser & Ney 1995; the interpolated form: Chen & Goodman 1998, section 4.1.6.
    """

    def __init__(self, codes: Iterable[Int64[np.ndarray, "bytes"]], order: int):
        if not 1 <= order <= _LONGEST_GRAM:
            raise ConfigError(f"n-gram: order={order} is not possible; it must be from 1 to {_LONGEST_GRAM}")
        self.order = order
        self._levels: list[_Level] = []
        grams = counts = np.empty(0, np.int64)
        for piece in codes:
            new, times = np.unique(piece & _mask(order), return_counts=True)
            grams, at = np.unique(np.concatenate([grams, new]), return_inverse=True)
            counts = np.bincount(at, np.concatenate([counts, times])).astype(np.int64)
        for k in range(order, 0, -1):
            self._levels.append(_Level(grams, counts))
            grams, counts = np.unique(grams & _mask(k - 1), return_counts=True)
        self._levels.reverse()

    def probability(self, codes: Int64[np.ndarray, "bytes"]) -> Float64[np.ndarray, "bytes"]:
        """Probability of the last byte of each code after the others."""
        probability = np.full(codes.shape, 1 / 256)
        for k, level in enumerate(self._levels, 1):
            probability = level.interpolate(codes & _mask(k), probability)
        return probability


class _Level:
    """The k-grams of one length."""

    def __init__(self, grams: Int64[np.ndarray, "grams"], counts: Int64[np.ndarray, "grams"]):
        once, twice = int((counts == 1).sum()), int((counts == 2).sum())
        # Half a k-gram is added to both, so that 0 < d < 1 even where none was counted once or twice.
        self.discount = (once + 0.5) / (once + 2 * twice + 1.5)
        self.grams, self.counts = grams, counts
        self.contexts, starts, self.types = np.unique(grams >> 8, return_index=True, return_counts=True)
        self.totals = np.add.reduceat(counts, starts)

    def interpolate(
        self, codes: Int64[np.ndarray, "bytes"], lower: Float64[np.ndarray, "bytes"]
    ) -> Float64[np.ndarray, "bytes"]:
        counts = _look_up(self.grams, self.counts, codes)
        totals = _look_up(self.contexts, self.totals, codes >> 8)
        types = _look_up(self.contexts, self.types, codes >> 8)
        seen = np.maximum(counts - self.discount, 0) + self.discount * types * lower
        return np.where(totals > 0, seen / np.maximum(totals, 1), lower)


def ngram_bits_per_byte(
    task: Task,
    *,
    order: int = 5,
    split: Split = "valid",
    windows: Sequence[int] | None = None,
    train_windows: Sequence[int] | None = None,
) -> Coded:
    """Bits that an interpolated n-gram model needs for the targets of windows.

    It sees more than a model does: its context reaches back over the start of a window (never over that of a document).

    Args:
        task: on text.
        order: bytes in the longest n-gram.
        split: the one that is coded.
        windows: numbers of its windows that are coded; None: all.
        train_windows: numbers of the training windows that are counted; None: all. Give those that the models were
            trained on for the same data; a window trained on twice counts once.

    Raises:
        UnsupportedError: a task without text.
        ConfigError: an impossible order or window.
    """
    model = ByteNGram((piece.codes(order) for piece in _pieces(task, "train", train_windows, order - 1)), order)
    count = _windows(task, split).num_documents
    coded = Coded(np.zeros(count), np.zeros(count, np.int64))
    for piece in _pieces(task, split, windows, order - 1):
        different, inverse = np.unique(piece.codes(order), return_inverse=True)
        np.add.at(coded.bits, piece.document, -np.log2(model.probability(different))[inverse])
        np.add.at(coded.nbytes, piece.document, 1)
    return coded


def xz_bits_per_byte(
    task: Task,
    *,
    split: Split = "valid",
    windows: Sequence[int] | None = None,
    train_windows: Sequence[int] | None = None,
) -> Coded:
    """Bits that xz needs for the targets of windows after the training text: 8 (size(train + coded) - size(train)).

    Preset 9: its dictionary of 64 MiB reaches back over that much training text. One entry for all documents: what a
    later one costs depends on the earlier ones, so there is nothing to resample.

    Args:
        task, split, windows, train_windows: as for `ngram_bits_per_byte`.

    Raises:
        UnsupportedError: a task without text.
        ConfigError: an impossible window.
    """

    def size(*parts: tuple[Split, Sequence[int] | None]) -> tuple[int, int]:
        """Bytes of the last part, and of all of them compressed."""
        compressor, length, packed = lzma.LZMACompressor(preset=9), 0, 0
        for part in parts:
            length = 0
            for piece in _pieces(task, *part, 0):
                text = b"".join(piece.texts)
                length, packed = length + len(text), packed + len(compressor.compress(text))
        return length, packed + len(compressor.flush())

    with ThreadPoolExecutor(2) as pool:
        known, both = (
            pool.submit(size, ("train", train_windows)),
            pool.submit(size, ("train", train_windows), (split, windows)),
        )
    return Coded(np.array([8.0 * (both.result()[1] - known.result()[1])]), np.array([both.result()[0]]))


class _Piece(NamedTuple):
    """The bytes that the targets of some windows stand for, behind as many bytes of their documents as were asked for,
    zeros before these begin; and the bootstrap unit of each target byte."""

    texts: list[bytes]
    document: Int64[np.ndarray, "bytes"]

    def codes(self, order: int) -> Int64[np.ndarray, "bytes"]:
        """Each target and the order - 1 bytes before it."""
        lengths = np.array([len(text) for text in self.texts])
        data = np.frombuffer(b"".join(self.texts), np.uint8).astype(np.int64)
        place = np.arange(data.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        at = np.flatnonzero(place >= order - 1)
        return sum((data[at - lag] << 8 * lag for lag in range(1, order)), data[at])


def _windows(task: Task, split: Split) -> Windows:
    if not isinstance(task, TextTask):
        raise UnsupportedError(f"bits per byte need text: the task {task.name} has none; use the task text")
    windows = task.examples(split)
    if isinstance(windows, StoredWindows):
        raise UnsupportedError(
            f"{task.config.corpus} is a token store, which n-grams and xz do not read: give them a corpus of text"
        )
    return windows


def _pieces(task: Task, split: Split, indices: Sequence[int] | None, before: int) -> Iterator[_Piece]:
    windows = _windows(task, split)
    index = np.arange(len(windows)) if indices is None else np.unique(np.asarray(indices, np.int64))
    if index.size == 0 or index[0] < 0 or index[-1] >= len(windows):
        raise ConfigError(f"windows must be some of 0 .. {len(windows) - 1} of the {split} split, got {indices!r:.80}")
    for some in np.array_split(index, -(-index.size * windows.length // _TOKENS_AT_ONCE)):
        spans = windows.spans(some)
        texts = [windows.text(*span, before) for span in zip(spans.begin, spans.first, spans.stop, strict=True)]
        yield _Piece(texts, np.repeat(spans.document, [len(text) - before for text in texts]))


def _mask(k: int) -> int:
    return (1 << 8 * k) - 1


def _look_up(
    keys: Int64[np.ndarray, "keys"], values: Int64[np.ndarray, "keys"], wanted: Int64[np.ndarray, "bytes"]
) -> Int64[np.ndarray, "bytes"]:
    """The values of sorted keys, 0 for those that are not there."""
    at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.where(keys[at] == wanted, values[at], 0)
