"""Baselines of a model: an n-gram model and xz, on exactly the bytes that the models are measured on."""

import lzma
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from regard.errors import ConfigError, UnsupportedError
from regard.tasks.base import Split, Task
from regard.tasks.stored_windows import StoredWindows
from regard.tasks.text import TextTask

_LONGEST_GRAM = 7
"""Longest n-gram: 8 bytes would not fit a signed 64-bit code."""


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
        codes: of every position of the training text.
        order: bytes in the longest n-gram, context and prediction together.

    Source: Kneser & Ney 1995; the interpolated form: Chen & Goodman 1998, section 4.1.6.
    """

    def __init__(self, codes: Int64[np.ndarray, "bytes"], order: int):
        if not 1 <= order <= _LONGEST_GRAM:
            raise ConfigError(f"n-gram: order={order} is not possible; it must be from 1 to {_LONGEST_GRAM}")
        self.order = order
        self._levels: list[_Level] = []
        grams, counts = np.unique(codes & _mask(order), return_counts=True)
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
    known, new = _targets(task, "train", train_windows), _targets(task, split, windows)
    model = ByteNGram(known.codes(order), order)
    different, inverse = np.unique(new.codes(order), return_inverse=True)
    bits = -np.log2(model.probability(different))[inverse]
    return Coded(
        np.bincount(new.document, bits, new.num_documents), np.bincount(new.document, minlength=new.num_documents)
    )


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
    known, new = _targets(task, "train", train_windows).text(), _targets(task, split, windows).text()
    with ThreadPoolExecutor(2) as pool:
        before, after = pool.map(lambda text: len(lzma.compress(text, preset=9)), (known, known + new))
    return Coded(np.array([8.0 * (after - before)]), np.array([len(new)]))


class _Targets(NamedTuple):
    """The bytes that the targets of some windows stand for.

    data: all bytes of the split. place: where the targets are in it. since: how far that is from the start of the
    document. document: the bootstrap unit of each target, of num_documents.
    """

    data: UInt8[np.ndarray, "all"]
    place: Int64[np.ndarray, "bytes"]
    since: Int64[np.ndarray, "bytes"]
    document: Int64[np.ndarray, "bytes"]
    num_documents: int

    def codes(self, order: int) -> Int64[np.ndarray, "bytes"]:
        """Each target and the order - 1 bytes before it; 0 before the start of its document."""
        codes = self.data[self.place].astype(np.int64)
        for lag in range(1, order):
            earlier = np.where(self.since >= lag, self.data[self.place - lag], 0)
            codes |= earlier.astype(np.int64) << 8 * lag
        return codes

    def text(self) -> bytes:
        return self.data[self.place].tobytes()


def _targets(task: Task, split: Split, indices: Sequence[int] | None) -> _Targets:
    if not isinstance(task, TextTask):
        raise UnsupportedError(f"bits per byte need text: the task {task.name} has none; use the task text")
    windows = task.examples(split)
    if isinstance(windows, StoredWindows):
        raise UnsupportedError(
            f"{task.config.corpus} is a token store, and n-grams and xz read all text into memory: give them a smaller "
            "corpus"
        )
    index = np.arange(len(windows)) if indices is None else np.unique(np.asarray(indices, np.int64))
    if index.size == 0 or index[0] < 0 or index[-1] >= len(windows):
        raise ConfigError(f"windows must be some of 0 .. {len(windows) - 1} of the {split} split, got {indices!r:.80}")
    starts = windows.tokens.starts
    edges = np.concatenate([[0], np.cumsum(windows.sizes(0, len(windows.tokens.ids)))])
    spans = windows.spans(index)
    first = edges[spans.first]
    nbytes = edges[spans.stop] - first
    place = np.repeat(first - (np.cumsum(nbytes) - nbytes), nbytes) + np.arange(nbytes.sum())
    begin = edges[starts[np.searchsorted(starts, spans.first, side="right") - 1]]
    return _Targets(
        data=windows.text(),
        place=place,
        since=place - np.repeat(begin, nbytes),
        document=np.repeat(spans.document, nbytes),
        num_documents=windows.num_documents,
    )


def _mask(k: int) -> int:
    return (1 << 8 * k) - 1


def _look_up(
    keys: Int64[np.ndarray, "keys"], values: Int64[np.ndarray, "keys"], wanted: Int64[np.ndarray, "bytes"]
) -> Int64[np.ndarray, "bytes"]:
    """The values of sorted keys, 0 for those that are not there."""
    at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.where(keys[at] == wanted, values[at], 0)
