"""The examples that a step sees: a pure function of seed and step, so that a resumed run needs only the step."""

import hashlib

import numpy as np
import numpy.typing as npt

from regard.errors import DataError

# The increment and the two multipliers of SplitMix64 (Steele, Lea & Flood 2014, figure 17).
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)


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


class DataOrder:
    """The endless stream of examples, epoch after epoch, cut into batches.

    Args:
        count: examples in the split.
        batch_size: examples per step; a batch may span the end of an epoch, so that none is dropped.
        seed: of the order.

    Raises:
        DataError: the split is empty.
    """

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        if count < 1:
            raise DataError(
                "the training split holds no example: the data is shorter than one sequence. "
                "Give more data or a smaller task length"
            )
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self._epoch, self._order = -1, np.empty(0, np.int64)

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
            self._epoch, self._order = epoch, permutation(self.seed, epoch, self.count)
        return int(self._order[index])
