"""What the scripts beside this file share: paired laps, decoding, both allocations in processes of their own."""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from regard.core.attention import Attention
from regard_lab.benchmark.timing import allocation

HEADS, DIM = 8, 64
PASTS = (256, 4096, 16384)

Laps = dict[str, list[float]]


def timed(attend: Callable[[Tensor, Tensor, Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor) -> Callable[[], float]:
    """One forward + backward on fresh leaves, in seconds."""
    gradient = torch.randn(*q.shape[:3], v.shape[3])

    def once() -> float:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        start = time.perf_counter()
        attend(*leaves).backward(gradient)
        return time.perf_counter() - start

    return once


def laps(runs: Mapping[str, Callable[[], float]], repeats: int) -> Laps:
    """Every contestant in turns, after one turn that does not count: a slow moment hits all."""
    for once in runs.values():
        once()
    found: Laps = {name: [] for name in runs}
    for _ in range(repeats):
        for name, once in runs.items():
            found[name].append(once())
    return found


def ratio(found: Laps, above: str, below: str) -> float:
    """The median of the ratios of the turns."""
    return statistics.median(a / b for a, b in zip(found[above], found[below], strict=True))


def decode(label: str, mechanism: Attention, steps: int = 64) -> None:
    """Print microseconds per token, and KiB of state, after a past of each length."""
    line = []
    mechanism.eval()
    for length in PASTS:
        with torch.no_grad():
            state = mechanism(*torch.randn(3, 1, HEADS, length, DIM), state=mechanism.initial_state(1)).state
            token = torch.randn(3, 1, HEADS, 1, DIM)
            taken = []
            for _ in range(steps):
                start = time.perf_counter()
                state = mechanism(*token, state=state).state
                taken.append(time.perf_counter() - start)
        assert state is not None
        line.append(f"{length}: {1e6 * statistics.median(taken):.0f} us, {state.nbytes / 1024:.0f} KiB")
    print(f"decode, {label}, per token after " + ", ".join(line), flush=True)


def run(script: str, description: str | None, work: Callable[[list[int], int], None], lengths: list[int]) -> None:
    """The command line of a script: `work(lengths, repeats)` under fixed allocation, then under the default one."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=lengths)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--here", action="store_true", help="measure in this process, under its allocation")
    options = parser.parse_args()
    if options.here:
        torch.set_num_threads(options.threads)
        work(options.lengths, options.repeats)
        return
    for label, fixed in (("fixed allocation", True), ("default allocation", False)):
        print(f"{label}, float32, {options.threads} threads, (batch, {HEADS}, n, {DIM})", flush=True)
        command = [sys.executable, script, "--here", *sys.argv[1:]]
        subprocess.run(command, env=allocation(os.environ, fixed=fixed), check=True)
