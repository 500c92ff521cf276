"""What the scripts beside this file share: arguments, turns, medians, fixed allocation, missing packages.

A script declares what it compares. `turns` measures every contestant once in each turn, after one turn that does not
count, so that a slow moment of the machine hits all; a ratio is the median of the ratios of the turns.
"""

import argparse
import importlib.util
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

CERTAINTY = 0.95
"""of the interval around a median"""
LEAST_TURNS = 6
"""with fewer even the least and the greatest are no bounds of this certainty"""
FIXED_ALLOCATION = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**28),
}
"""as in regard_lab.benchmark.timing: freed memory is kept, as a training run in steady state does"""

Seconds = dict[str, list[float]]


def arguments(description: str | None, **defaults: object) -> argparse.Namespace:
    """Options of a command line by their defaults: a list takes several values, a path is a positional argument."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        if isinstance(default, Path):
            parser.add_argument(name, type=Path, nargs="?", default=default)
        elif isinstance(default, bool):
            parser.add_argument(f"--{name}", action="store_true")
        elif isinstance(default, list):
            parser.add_argument(f"--{name}", type=type(default[0]), nargs="+", default=default)
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args()


def require(*packages: str) -> None:
    """End with a word where a package is missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        print(f"skipped: {', '.join(missing)} not installed; `make external` installs them")
        sys.exit(0)


def environment(*, fixed: bool = True, **more: str) -> dict[str, str]:
    """Variables of a process that is measured, under fixed allocation or the default one."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    return {**others, **(FIXED_ALLOCATION if fixed else {}), **more}


def under_both_allocations(work: Callable[[], None]) -> None:
    """Call this script under fixed allocation, then under the default one, each in a process of its own."""
    if "REGARD_MEASURED" in os.environ:
        work()
        return
    for label, fixed in (("fixed allocation", True), ("default allocation", False)):
        print(label, flush=True)
        subprocess.run([sys.executable, *sys.argv], env=environment(fixed=fixed, REGARD_MEASURED="1"), check=True)


def wall(call: Callable[[], object]) -> float:
    """Seconds on the clock."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def processor(call: Callable[[], object]) -> float:
    """Seconds of a processor."""
    start = time.process_time()
    call()
    return time.process_time() - start


def turns(runs: Mapping[str, Callable[[], float]], count: int, *, warm: bool = True) -> Seconds:
    """Seconds of every run in each turn; who begins changes from turn to turn."""
    found: Seconds = {name: [] for name in runs}
    names = list(runs)
    for turn in range(-1 if warm else 0, count):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds = runs[name]()
            if turn >= 0:
                found[name].append(seconds)
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Order statistics between which the true median lies with `CERTAINTY`; the outermost where there are too few.

    Example:
        >>> interval([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 9.0])
        (1.1, 1.8)
    """
    ordered, count = sorted(values), len(values)
    cut, below = 0, 0.0
    while cut < (count - 1) // 2:
        below += math.comb(count, cut) / 2**count
        if 2 * below > 1 - CERTAINTY:
            break
        cut += 1
    cut = max(cut - 1, 0)
    return ordered[cut], ordered[count - 1 - cut]


def ratio(found: Seconds, above: str, below: str) -> str:
    """The median of the ratios of the turns, with its interval, or with the range of few turns."""
    ratios = [a / b for a, b in zip(found[above], found[below], strict=True)]
    low, high = interval(ratios)
    kind = "" if len(ratios) >= LEAST_TURNS else "range "
    return f"{statistics.median(ratios):.2f} ({kind}{low:.2f} to {high:.2f})"


def show(label: str, found: Seconds, *pairs: tuple[str, str]) -> None:
    """Print medians, and ratios of pairs."""
    line = [f"{name} {1e3 * statistics.median(own):.1f} ms" for name, own in found.items()]
    line += [f"{above} / {below} {ratio(found, above, below)}" for above, below in pairs]
    print(f"{label}: {', '.join(line)}", flush=True)
