"""Windows of the documents of a token store: found by a search in a short list, whatever their number."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64

from regard_lab.tasks.base import IGNORE, Example, Split, checked_index
from regard_lab.tasks.token_store import TokenStore

GROUP = 4096
"""documents whose windows are counted together: what stays in memory is two numbers of each group"""
_AT_A_TIME = 16
"""groups that are counted at a time"""
MOST_UNITS = 4096
"""of a bootstrap: where there are more documents, consecutive ones make a unit"""
BLOCKS_OF_ONE_DOCUMENT = 20


class StoredWindows:
    """The documents of a split of a store, cut into windows as `regard_lab.tasks.text.Windows` cuts them.

    Memory: 40 bytes for every 4,096 documents, and what is mapped. An example takes a search in these, one in the
    documents of a group, and a checksum of the blocks that it lies in.

    `Example.document` counts documents; in a split of more than 4,096, as many blocks of consecutive ones.

    Args:
        store: an open one.
        split: of it.
        length: targets in a window.

    Raises:
        DataError: what says where documents are is damaged.
    """

    streamed = True
    """examples are too many for a list of their numbers"""

    def __init__(self, store: TokenStore, split: Split, length: int) -> None:
        self.store, self.length = store, length
        self.split: Split = split
        self.tokenizer = store.tokenizer
        counts, firsts, shards, self.longest = [], [], [], 0
        for number in range(len(store.facts.shards)):
            store.require_bounds(number, split)
            bounds = store.bounds(number, split)
            for first in range(0, len(bounds), _AT_A_TIME * GROUP):
                sizes = np.diff(bounds[first : first + _AT_A_TIME * GROUP], axis=1)[:, 0]
                self.longest = max(self.longest, int(sizes.max()))
                windows = _windows(sizes, length)
                starts = np.arange(0, len(sizes), GROUP)
                counts.append(np.add.reduceat(windows, starts))
                firsts.append(first + starts)
                shards.append(np.full(len(starts), number))
        none = [np.zeros(0, np.int64)]
        self._ends = np.cumsum(np.concatenate(counts or none))
        self._firsts, self._shards = np.concatenate(firsts or none), np.concatenate(shards or none)
        self.documents = store.amount(split).documents
        before = np.cumsum([0, *(shard.amounts[split].documents for shard in store.facts.shards)])
        self._before = before[self._shards] + self._firsts
        self.num_documents = min(self.documents, MOST_UNITS)
        if self.documents == 1:
            self.num_documents = min(BLOCKS_OF_ONE_DOCUMENT, len(self))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Example:
        shard, begin, end, number, row = self._found(checked_index(index, len(self)))
        first = begin + number * self.length
        ids, nbytes = self.store.tokens(shard, first, min(first + self.length + 1, end))
        inputs = np.full(self.length, self.tokenizer.filler, np.int64)
        targets = np.full(self.length, IGNORE, np.int64)
        inputs[: ids.size - 1], targets[: ids.size - 1] = ids[:-1], ids[1:]
        units = index * self.num_documents // len(self) if self.documents == 1 else self._unit(row)
        return Example(inputs, targets, units, int(nbytes[1:].sum()))

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    def place(self, index: int) -> tuple[Int64[np.ndarray, "tokens"], int]:
        """The token ids of the document that a window is of, and the place of the window's first target in it."""
        shard, begin, end, number, _ = self._found(checked_index(index, len(self)))
        return self.store.tokens(shard, begin, end)[0], number * self.length + 1

    def _unit(self, row: int) -> int:
        return row * self.num_documents // self.documents

    def _found(self, index: int) -> tuple[int, int, int, int, int]:
        """The shard of a window, where its document begins and ends there, its number in it, and that of the document
        in the split."""
        group = int(np.searchsorted(self._ends, index, side="right"))
        shard, first = int(self._shards[group]), int(self._firsts[group])
        bounds = self.store.bounds(shard, self.split)[first : first + GROUP]
        ends = np.cumsum(_windows(np.diff(bounds, axis=1)[:, 0], self.length))
        at = index - (int(self._ends[group - 1]) if group else 0)
        row = int(np.searchsorted(ends, at, side="right"))
        number = at - (int(ends[row - 1]) if row else 0)
        return shard, int(bounds[row, 0]), int(bounds[row, 1]), number, int(self._before[group]) + row


def _windows(sizes: Int64[np.ndarray, "documents"], length: int) -> Int64[np.ndarray, "documents"]:
    """Of documents of so many tokens: ceil((tokens - 1) / length)."""
    return -((1 - sizes) // length)
