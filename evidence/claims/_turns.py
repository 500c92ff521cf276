"""Processor time of calls in turns: what waits for a busy machine costs nothing."""

import statistics
import time
from collections.abc import Callable, Mapping


def processor_seconds(
    candidates: Mapping[str, Callable[[], object]], *, rounds: int, warmup: int = 2, budget_seconds: float = 12.0
) -> dict[str, float]:
    """The median processor time of each call, over rounds in which every call has its turn.

    Args:
        candidates: name -> a call without arguments.
        rounds: turns; fewer when `budget_seconds` of the clock are used up, but at least one.
        warmup: untimed turns.
        budget_seconds: stop starting rounds after this.

    Example:
        >>> found = processor_seconds({"little": lambda: sum(range(10)), "much": lambda: sum(range(10**5))}, rounds=5)
        >>> found["little"] < found["much"]
        True
    """
    for _ in range(warmup):
        for call in candidates.values():
            call()
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    began = time.perf_counter()
    for _ in range(rounds):
        for name, call in candidates.items():
            start = time.process_time()
            call()
            taken[name].append(time.process_time() - start)
        if time.perf_counter() - began > budget_seconds:
            break
    return {name: statistics.median(seconds) for name, seconds in taken.items()}
