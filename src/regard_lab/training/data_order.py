"""The examples that a step sees: a pure function of seed and step, so that a resumed run needs only the step."""

import hashlib

import numpy as np
import numpy.typing as npt

from regard.core.errors import DataError
from regard_lab.tasks.base import Examples

# The increment and the two multipliers of SplitMix64 (Steele, Lea & Flood 2014, figure 17).
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)
_WORD = (1 << 64) - 1
_ROUNDS = 6


def permutation(seed: int, epoch: int, count: int) -> npt.NDArray[np.int64]:
    """The order of `count` examples in one epoch: sorted by hash(seed, epoch, index).

    The hash is SplitMix64 started at a digest of (seed, epoch). It is a bijection of the index, so no two examples tie,
    and it is arithmetic alone: the order does not change with the version of a library. Cost: O(count log count).

    Example:
        >>> sorted(permutation(0, 0, 5).tolist())
        [0, 1, 2, 3, 4]
    """
    digest = hashlib.sha256(repr((seed, epoch)).encode()).digest()
    start = np.uint64(int.from_bytes(digest[:8], "little"))
    with np.errstate(over="ignore"):
        keys = start + np.arange(1, count + 1, dtype=np.uint64) * _INCREMENT
        keys = (keys ^ (keys >> np.uint64(30))) * _FIRST_MULTIPLIER
        keys = (keys ^ (keys >> np.uint64(27))) * _SECOND_MULTIPLIER
        keys = keys ^ (keys >> np.uint64(31))
    return np.argsort(keys)


class Shuffle:
    """An order of `count` examples that is computed place by place, so that no list of them is held.

    A Feistel network of six rounds permutes the numbers of an even number of bits, at most four times as many as there
    are examples; its round function is the SplitMix64 finaliser, its keys are a digest of (seed, epoch). A number
    beyond the examples is permuted again until it is one of them, which keeps the map one to one. Cost: some 20
    microseconds a place.

    Source: Luby & Rackoff 1988; the walk back into the domain: Black & Rogaway 2002, section 3.

    Example:
        >>> shuffle = Shuffle(0, 0, 5)
        >>> sorted(shuffle[place] for place in range(5))
        [0, 1, 2, 3, 4]
    """

    def __init__(self, seed: int, epoch: int, count: int) -> None:
        self.count = count
        self._bits = max(1, -(-max(count - 1, 1).bit_length() // 2))  # of a half
        digest = hashlib.shake_256(repr(("shuffle", seed, epoch)).encode()).digest(8 * _ROUNDS)
        self._keys = [int.from_bytes(digest[8 * at : 8 * at + 8], "little") for at in range(_ROUNDS)]

    def __getitem__(self, place: int) -> int:
        found = self._permuted(place)
        while found >= self.count:
            found = self._permuted(found)
        return found

    def _permuted(self, number: int) -> int:
        mask = (1 << self._bits) - 1
        left, right = number >> self._bits, number & mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(key + right) & mask)
        return left << self._bits | right


def _mixed(number: int) -> int:
    """The finaliser of SplitMix64, in Python's integers."""
    number &= _WORD
    number = ((number ^ (number >> 30)) * int(_FIRST_MULTIPLIER)) & _WORD
    number = ((number ^ (number >> 27)) * int(_SECOND_MULTIPLIER)) & _WORD
    return number ^ (number >> 31)


class DataOrder:
    """The endless stream of examples, epoch after epoch, cut into batches.

    Args:
        count: examples in the split.
        batch_size: examples per step; a batch may span the end of an epoch, so that none is dropped.
        seed: of the order.
        streamed: the examples are too many for a list of their numbers: `Shuffle` orders them instead of `permutation`.

    Raises:
        DataError: the split is empty.
    """

    def __init__(self, count: int, batch_size: int, seed: int, *, streamed: bool = False) -> None:
        if count < 1:
            raise DataError(
                "the training split holds no example: the data is shorter than one sequence. "
                "Give more data or a smaller task length"
            )
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self._ordered = Shuffle if streamed else permutation
        self._epoch = -1
        self._order: Shuffle | npt.NDArray[np.int64] = np.empty(0, np.int64)

    @classmethod
    def of(cls, examples: Examples, batch_size: int, seed: int) -> "DataOrder":
        """That of a split."""
        return cls(len(examples), batch_size, seed, streamed=getattr(examples, "streamed", False))

    def batch(self, step: int) -> list[int]:
        """Example ids of a step, in order."""
        first = step * self.batch_size
        return [self._example(place) for place in range(first, first + self.batch_size)]

    def epochs(self, step: int) -> list[int]:
        """The epoch of each of them, from 0."""
        first = step * self.batch_size
        return [place // self.count for place in range(first, first + self.batch_size)]

    def _example(self, place: int) -> int:
        epoch, index = divmod(place, self.count)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._ordered(self.seed, epoch, self.count)
        return int(self._order[index])
