"""Paired timing: every candidate in one process, in turns, under fixed allocation; medians and ratios of medians."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from regard_lab.benchmark.quiet import MOST_SLOWER, Sample, Watch, doubt

REPEATS = 2
"""times as many turns as asked for, at most, while the machine is busy"""

FIXED_ALLOCATION = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**28),
}
"""Under glibc's defaults tensors above 32 MiB go back to the system and are faulted in again at every call, which alone
can make one side look twice as slow. These settings must be in the environment before a process starts."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one candidate: the median over the quiet turns, and the interval that it is believed to be in.

    Attributes:
        seconds: the median.
        low, high: see `interval`.
        turns: how many the median is over.
        untrusted: why nothing should be concluded from it; None: the machine was quiet.
    """

    seconds: float
    low: float
    high: float
    turns: int = 1
    untrusted: str | None = None


def paired(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 5,
    warmup: int = 1,
    budget_seconds: float = 60.0,
    watch: Watch | None = None,
) -> dict[str, Timing]:
    """Time callables in turns, so that a slow moment of a shared machine hits all of them.

    A turn in which the machine was busy (see `regard_lab.benchmark.quiet`) is repeated, up to `REPEATS` times as many
    turns as asked for. Where too few were quiet, the figure says that it cannot be trusted.

    Args:
        candidates: name -> a call without arguments; each must finish its own work (synchronise a GPU).
        rounds: quiet turns; fewer when `budget_seconds` is used up, but at least one turn.
        warmup: untimed turns.
        budget_seconds: stop starting turns after this.
        watch: the clocks; None: those of this machine.
    """
    watch = Watch() if watch is None else watch
    for _ in range(warmup):
        for call in candidates.values():
            call()
    samples: dict[str, list[Sample]] = {name: [] for name in candidates}
    began, before = watch.wall(), watch.slower()
    for _ in range(REPEATS * rounds):
        taken = {name: watch.timed(call) for name, call in candidates.items()}
        after = watch.slower()
        for name, (seconds, share) in taken.items():
            samples[name].append(Sample(seconds, share, max(before, after)))
        before = after
        if all(sum(sample.quiet for sample in own) >= rounds for own in samples.values()):
            break
        if watch.wall() - began > budget_seconds:
            break
    return {name: summary(own, rounds) for name, own in samples.items()}


def summary(samples: Sequence[Sample], rounds: int) -> Timing:
    """The figure that samples make: of the quiet ones, or of all, with the doubt, where too few are quiet."""
    untrusted = doubt(samples, rounds)
    kept = [sample for sample in samples if untrusted or sample.quiet]
    seconds = [sample.seconds for sample in kept]
    low, high = interval(seconds)
    slower = min(max(sample.slower for sample in kept), MOST_SLOWER)
    return Timing(statistics.median(seconds), low / slower, high, len(kept), untrusted)


def interval(seconds: Sequence[float]) -> tuple[float, float]:
    """Where the median is, at 95 %, whatever the distribution: from the k-th smallest to the k-th largest, where fewer
    than k of n coins fall heads with a probability of 2.5 % at most. The extremes where n is less than 6; one or two
    say nothing of how much they vary, and get what the calibration lets pass.

    Example:
        >>> interval([5.0, 1.0, 4.0, 2.0, 3.0])
        (1.0, 5.0)
        >>> interval([float(at) for at in range(1, 22)])
        (6.0, 16.0)
    """
    ordered, n = sorted(seconds), len(seconds)
    if n < 3:
        return ordered[0] / MOST_SLOWER, ordered[-1] * MOST_SLOWER
    k, tail = 1, 2.0**-n
    while tail + math.comb(n, k) * 2.0**-n <= 0.025:
        tail += math.comb(n, k) * 2.0**-n
        k += 1
    return ordered[k - 1], ordered[n - k]
