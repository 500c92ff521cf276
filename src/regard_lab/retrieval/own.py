"""Own entries: those of a datastore that were made of the very tokens that are predicted, however their text is cut."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64, UInt64
from torch import Tensor

from regard.core.errors import DataError, UnsupportedError
from regard_lab.retrieval.datastore import Datastore
from regard_lab.retrieval.documents import digest
from regard_lab.retrieval.search import Piece
from regard_lab.tasks.base import IGNORE, Examples
from regard_lab.training.batches import Batch

LEAST = 16
"""tokens that two cuts of a text have in common at least, to be known as such"""
PASSAGE = 32
"""tokens of a passage that is said to be in the datastore too; one of 63 is always seen"""
_GRAM = 8
"""tokens that are looked up at a time"""
_EDGE = 8
"""tokens at the ends of a cut that may be others: a separator, or a word that was cut and has other tokens"""
_MOST = 4096
"""copies of a text, above which it is refused: every shift of a text that repeats itself is a copy"""
_BASE = 0x9E3779B97F4A7C15


class Run(NamedTuple):
    """Targets of a document from `first` up to `stop`, and the number of the entry that was made of the first."""

    first: int
    stop: int
    entry: int


class Found(NamedTuple):
    """Of the targets of one document: its runs, which targets have an own entry, and which others are in a passage
    that the datastore has too."""

    runs: Sequence[Run]
    own: Bool[np.ndarray, "targets"]
    shared: Bool[np.ndarray, "targets"]


class Tally(NamedTuple):
    """Targets so far: all, those whose own entries were left out, others in a passage that the datastore has too."""

    targets: int = 0
    own: int = 0
    shared: int = 0

    def with_(self, found: Found, targets: slice | np.ndarray = slice(None)) -> "Tally":
        """And some targets of a document, all of them unless some are named."""
        own, shared = found.own[targets], found.shared[targets]
        return Tally(self.targets + len(own), self.own + int(own.sum()), self.shared + int(shared.sum()))

    def __str__(self) -> str:
        """A line for the user."""
        line = f"{self.own:,} of {self.targets:,} targets are in the datastore, and their own entries were left out"
        if self.shared:
            line += (
                f"; at least {self.shared:,} others are in passages of {PASSAGE} tokens that it has in other documents "
                "and may find"
            )
        return line


@runtime_checkable
class Placed(Protocol):
    """Examples that say where in which document their targets are."""

    def place(self, index: int) -> tuple[np.ndarray, int]:
        """The token ids of the whole document, and the place of the first target in it."""
        ...


class Own:
    """Finds the entries that were made of the very targets of examples.

    A document with the ids of a stored one is that one, under any name and in every copy. Any other is laid over the
    stored documents: where the two agree on all that they overlap, they are cuts of one text. Only there, so that
    passages which another document has too stay to be found. The first and last eight tokens of what overlaps
    may differ, and the agreeing rest has 16 tokens or more. A text that repeats itself has a copy at every shift.

    Cost: once, a pass over the values of the datastore, and 2 bytes in memory for each.

    Args:
        store: the datastore.
    """

    def __init__(self, store: Datastore) -> None:
        self.store, self.tally = store, Tally()
        self._texts: _Texts | None = None
        self._found: dict[str, Found] = {}

    def __call__(self, examples: Examples, batch: Batch) -> Int[Tensor, "queries copies"] | None:
        """Own entries of every position of a batch; -1 where there is none; None: of no position.

        Raises:
            UnsupportedError: examples that do not say where they are from.
            DataError: a text that repeats itself so often that its place is not known.
        """
        if not isinstance(examples, Placed):
            raise UnsupportedError(
                "these examples do not say which document they are from, so own entries are not known"
            )
        length = batch.inputs.shape[1]
        counted = batch.targets.cpu().numpy() != IGNORE
        rows: list[np.ndarray] = []
        for at, index in enumerate(batch.ids):
            ids, place = examples.place(index)
            found, first = self.of(ids), place - 1
            runs = [run for run in found.runs if run.first < first + length and run.stop > first]
            entries = np.full((length, len(runs)), -1, np.int64)
            for column, run in enumerate(runs):
                here = slice(max(run.first, first) - first, min(run.stop, first + length) - first)
                entries[here, column] = run.entry + first - run.first + np.arange(length)[here]
            entries[~counted[at]] = -1
            rows.append(-np.sort(-entries, axis=1))  # those that are there first
            self.tally = self.tally.with_(found, first + np.flatnonzero(counted[at]))
        copies = max(int((each >= 0).sum(1).max(initial=0)) for each in rows)
        if not copies:
            return None
        own = np.full((len(rows), length, copies), -1, np.int64)
        for at, each in enumerate(rows):
            own[at, :, : each.shape[1]] = each[:, :copies]
        return torch.from_numpy(own).flatten(0, 1)

    def of(self, ids: np.ndarray) -> Found:
        """What is in the datastore of a document.

        Raises:
            DataError: as a call.
        """
        key = digest(ids)
        if key not in self._found:
            if self._texts is None:
                self._texts = _Texts(self.store)
            targets = np.ascontiguousarray(ids[1:], np.int64)
            runs = [Run(0, len(targets), start) for start in self.store.own(key)]
            runs += self._texts.cuts(targets, but=key)
            own = np.zeros(len(targets), bool)
            for run in runs:
                own[run.first : run.stop] = True
            self._found[key] = Found(runs, own, self._texts.shared(targets) & ~own)
        return self._found[key]


class _Texts:
    """The token ids of a datastore, by what is in them."""

    def __init__(self, store: Datastore) -> None:
        self._pieces: Sequence[Piece] = store.pieces()
        self._firsts = np.array([piece.first for piece in self._pieces], np.int64)
        self._starts = np.array([*store.starts(), len(store)], np.int64)
        self._digests = [document.digest for document in store.manifest.documents]
        grams, passages = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
        rest = np.zeros(0, np.int64)
        for piece in self._pieces:  # whole passages, whatever block they are in
            rest = np.concatenate([rest, piece.values])
            whole = len(rest) // PASSAGE * PASSAGE
            grams.append(_hashes(rest[:whole], _GRAM)[::_GRAM])
            passages.append(_hashes(rest[:whole], PASSAGE)[::PASSAGE])
            rest = rest[whole:]
        grams.append(_hashes(rest, _GRAM)[::_GRAM])
        self._grams = _Table(np.concatenate(grams), None)
        self._passages = np.unique(np.concatenate(passages))
        begins = self._starts[:-1][np.diff(self._starts) >= LEAST]
        heads = np.concatenate([begins, begins + _GRAM])
        self._heads = _Table(_hashes(self._take(heads[:, None] + np.arange(_GRAM)), _GRAM).reshape(-1), heads)

    def cuts(self, targets: Int64[np.ndarray, "targets"], *, but: str) -> list[Run]:
        """Where stored documents and this one agree on all that they overlap; not with documents of the digest `but`.

        Raises:
            DataError: it repeats itself so often that its place is not known.
        """
        if len(targets) < LEAST or not self._firsts.size:
            return []
        grams = _hashes(targets, _GRAM)
        ends = len(targets)
        places = [self._grams.places(grams[: _EDGE + _GRAM]), self._heads.places(grams)]
        entry, at = (np.concatenate(each) for each in zip(*places, strict=True))
        document = np.searchsorted(self._starts, entry, side="right") - 1
        shift, document = _pairs(entry - at, document, len(self._digests))  # shift: the entry of target 0
        first = np.maximum(0, self._starts[document] - shift)
        stop = np.minimum(ends, self._starts[document + 1] - shift)
        likely = np.flatnonzero(stop - first >= LEAST)
        within = first[likely, None] + _EDGE + np.arange(_GRAM)  # where all that is long enough must agree
        likely = likely[(self._take(within + shift[likely, None]) == targets[within]).all(1)]
        found, left = [], _MOST * (ends + 1024)
        for at in likely.tolist():
            if self._digests[document[at]] == but:
                continue
            if left < 0:
                raise DataError(
                    "a text repeats itself so often that the entries which were made of it cannot be told from "
                    "others; cut it as the datastore has it, or let own entries be found (--knn.own)"
                )
            run, compared = self._agreeing(targets, int(first[at]), int(stop[at]), int(shift[at]))
            left -= compared
            found += [run] if run else []
        return sorted(found)

    def shared(self, targets: Int64[np.ndarray, "targets"]) -> Bool[np.ndarray, "targets"]:
        """Which targets are in a passage that the datastore has too."""
        begins = np.flatnonzero(np.isin(_hashes(targets, PASSAGE), self._passages))
        change = np.zeros(len(targets) + 1, np.int64)
        np.add.at(change, begins, 1)
        np.add.at(change, begins + PASSAGE, -1)
        return change[:-1].cumsum() > 0

    def _agreeing(self, targets: np.ndarray, first: int, stop: int, shift: int) -> tuple[Run | None, int]:
        """The run of an overlap, if it is one, and how many tokens were compared."""
        begin, at, step = first, first, 2 * LEAST
        while at < stop:
            until = min(at + step, stop)
            wrong = at + np.flatnonzero(self._take(np.arange(shift + at, shift + until)) != targets[at:until])
            early = wrong[wrong < first + _EDGE]
            begin = int(early[-1]) + 1 if early.size else begin
            late = wrong[wrong >= first + _EDGE]
            at, step = until, 4 * step
            if late.size:
                end = int(late[0])
                fits = end >= stop - _EDGE and end - begin >= LEAST
                return (Run(begin, end, shift + begin) if fits else None), at - first
        return (Run(begin, stop, shift + begin) if stop - begin >= LEAST else None), stop - first

    def _take(self, entries: Int64[np.ndarray, "*some"]) -> Int64[np.ndarray, "*some"]:
        """The values of these entries."""
        found = np.zeros(entries.shape, np.int64)
        piece = np.searchsorted(self._firsts, entries, side="right") - 1
        for at in np.unique(piece):
            here = piece == at
            found[here] = self._pieces[at].values[entries[here] - self._firsts[at]]
        return found


class _Table:
    """Where a hash is.

    Args:
        hashes: of some places.
        places: numbers of entries; None: every 8th, from 0 on.
    """

    def __init__(self, hashes: UInt64[np.ndarray, "places"], places: np.ndarray | None) -> None:
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._places = order * _GRAM if places is None else places[order]

    def places(self, hashes: UInt64[np.ndarray, "grams"]) -> tuple[np.ndarray, np.ndarray]:
        """Every place of every one of some hashes, and which of them it is.

        Raises:
            DataError: there are far too many.
        """
        low, high = (np.searchsorted(self._hashes, hashes, side) for side in ("left", "right"))
        count = high - low
        if count.sum() > _MOST * (len(hashes) + 1024):
            raise DataError(
                "the text, or the datastore, repeats itself so often that own entries cannot be told from others; let "
                "them be found (--knn.own), or leave the repetitions out"
            )
        which = np.repeat(np.arange(len(hashes)), count)
        within = np.arange(len(which)) - np.repeat(count.cumsum() - count, count)
        return self._places[low[which] + within], which


def _pairs(shift: np.ndarray, document: np.ndarray, documents: int) -> tuple[np.ndarray, np.ndarray]:
    """Each pair once."""
    shift, document = np.divmod(np.unique(shift * documents + document), documents)
    return shift, document


def _hashes(ids: np.ndarray, length: int) -> UInt64[np.ndarray, "*grams"]:
    """A hash of every `length` (a power of 2) consecutive ids on the last axis, sum_i id_i b^(length - 1 - i)."""
    found, step, base = ids.astype(np.uint64) + np.uint64(1), 1, _BASE
    if ids.shape[-1] < length:
        return found[..., :0]
    while step < length:
        found = found[..., :-step] * np.uint64(base) + found[..., step:]
        step, base = 2 * step, base * base % (1 << 64)
    return found
