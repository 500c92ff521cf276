"""Paired timing: every candidate in one process, in turns, under fixed allocation; medians and ratios of medians."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

FIXED_ALLOCATION = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**28),
}
"""Under glibc's defaults tensors above 32 MiB go back to the system and are faulted in again at every call, which alone
can make one side look twice as slow. These settings must be in the environment before a process starts."""


def allocation(environment: Mapping[str, str], *, fixed: bool) -> dict[str, str]:
    """The environment of a process with fixed allocation, or with the allocator's defaults whatever ours has."""
    others = {name: value for name, value in environment.items() if name not in FIXED_ALLOCATION}
    return {**others, **FIXED_ALLOCATION} if fixed else others


@dataclass(frozen=True)
class Timing:
    """Seconds of one candidate: the median and the quartiles over the rounds."""

    seconds: float
    low: float
    high: float


def paired(
    candidates: Mapping[str, Callable[[], object]], *, rounds: int = 5, warmup: int = 1, budget_seconds: float = 60.0
) -> dict[str, Timing]:
    """Time callables in turns, so that a slow moment of a shared machine hits all of them.

    Args:
        candidates: name -> a call without arguments; each must finish its own work (synchronise a GPU).
        rounds: turns; fewer when `budget_seconds` is used up, but at least one.
        warmup: untimed turns.
        budget_seconds: stop starting rounds after this.
    """
    for _ in range(warmup):
        for call in candidates.values():
            call()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    began = time.perf_counter()
    for _ in range(rounds):
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
        if time.perf_counter() - began > budget_seconds:
            break
    return {name: _summary(taken) for name, taken in seconds.items()}


def _summary(seconds: Sequence[float]) -> Timing:
    if len(seconds) < 2:
        return Timing(seconds[0], seconds[0], seconds[0])
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(middle, low, high)
