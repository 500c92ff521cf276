"""Whether the machine was quiet while something was timed: processor against wall time, and a calibration loop.

Imports torch when it first calibrates.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

LEAST_SHARE = 0.9
"""of its wall time the calling thread has a processor; on a quiet machine 0.97 and more, beside one other process for
every core less than 0.6"""
MOST_SLOWER = 1.25
"""the calibration loop against its best; on a quiet machine 1.1 and less"""
SIZE, PRODUCTS, LAPS = 320, 4, 5
"""of the calibration loop: matrix products of this size, so many in a lap, so many laps; about a millisecond a lap"""

_best: dict[int, float] = {}


class Sample(NamedTuple):
    """One timed call: its wall time, the share of it that its thread had a processor, and how many times its best the
    calibration loop took before or after it, whichever was more.
    """

    seconds: float
    share: float
    slower: float

    @property
    def quiet(self) -> bool:
        return self.share >= LEAST_SHARE and self.slower <= MOST_SLOWER


def lap() -> float:
    """Seconds of a fixed amount of work, with torch's threads."""
    import torch

    matrix, product = _matrices()
    began = time.perf_counter()
    for _ in range(PRODUCTS):
        torch.mm(matrix, matrix, out=product)
    return time.perf_counter() - began


@cache
def _matrices() -> "tuple[Tensor, Tensor]":
    """What is multiplied, and room for the product."""
    import torch

    matrix = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    product = matrix.clone()
    for _ in range(5 * PRODUCTS):  # threads start, and the library chooses its code
        torch.mm(matrix, matrix, out=product)
    return matrix, product


def _threads() -> int:
    import torch

    return torch.get_num_threads()


@dataclass
class Watch:
    """Times calls, and says of each whether it can be believed. Tests give clocks of their own.

    Args:
        wall: seconds that pass.
        processor: seconds that the calling thread had a processor.
        work: seconds of the calibration loop.
        threads: the best calibration is kept for each number of torch's threads.
    """

    wall: Callable[[], float] = time.perf_counter
    processor: Callable[[], float] = time.thread_time
    work: Callable[[], float] = lap
    threads: int = field(default_factory=_threads)

    def timed(self, call: Callable[[], object]) -> tuple[float, float]:
        """Seconds of a call, and the share of them that this thread had a processor."""
        busy, began = self.processor(), self.wall()
        call()
        seconds = self.wall() - began
        return seconds, (self.processor() - busy) / seconds if seconds > 0 else 1.0

    def slower(self) -> float:
        """How many times its best the calibration loop takes now: the median of a few laps against the shortest lap of
        this run. Where laps are far too long, one is enough to know.
        """
        best, laps = _best.get(self.threads), list[float]()
        for _ in range(LAPS):
            laps.append(self.work())
            if best is not None and laps[-1] > 2 * MOST_SLOWER * best:
                break
        seen({self.threads: min(laps)})
        return statistics.median(laps) / _best[self.threads]


def best() -> dict[int, float]:
    """Seconds of the shortest lap that this process knows of, by threads."""
    return dict(_best)


def seen(laps: Mapping[int, float] | Mapping[str, float]) -> None:
    """Remember laps of another process of the same run, where they are shorter; JSON has made the threads text."""
    for threads, seconds in laps.items():
        _best[int(threads)] = min(seconds, _best.get(int(threads), seconds))


def doubt(samples: Sequence[Sample], wanted: int) -> str | None:
    """Why a figure made of these samples cannot be trusted; None: it can.

    Args:
        samples: all that were taken.
        wanted: how many quiet ones were asked for; half of them have to be, or half of all where time was up before.
    """
    if 2 * sum(sample.quiet for sample in samples) >= min(wanted, len(samples)):
        return None
    share = statistics.median(sample.share for sample in samples)
    slower = statistics.median(sample.slower for sample in samples)
    if share < LEAST_SHARE:
        return f"the machine was busy: the timed thread had a processor for {share:.0%} of its time"
    return f"the machine was busy: a fixed piece of work beside it took {slower:.1f} times as long as at its best"
