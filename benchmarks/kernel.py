"""Causal `linear` and `performer` against causal scaled_dot_product_attention: medians, paired in one run.

    python benchmarks/kernel.py                     # fixed allocation, then default allocation
    python benchmarks/kernel.py --lengths 4096 --repeats 9

Forward + backward, float32, (1, 8, n, 64). Each round times every contestant once, so that a slow moment hits all.
Under glibc's default allocation, tensors above 32 MiB are faulted in again at every call, whoever makes them; the fixed
figures keep freed memory, as a training run in steady state does.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from regard.benchmark.timing import allocation

HEADS, DIM = 8, 64


def contestants(length: int) -> dict[str, Callable[[], float]]:
    """One timed forward + backward of each, in seconds."""
    import torch
    import torch.nn.functional as F

    from regard.attention.kernel.linear import Linear
    from regard.attention.kernel.performer import Performer
    from regard.core import Heads

    heads = Heads(count=HEADS, key_dim=DIM, causal=True)
    built = {"linear": Linear(heads), "performer(num_features=256)": Performer(heads, num_features=256)}
    q, k, v, g = (torch.randn(1, HEADS, length, DIM) for _ in range(4))

    def timed(attend: Callable) -> Callable[[], float]:
        def once() -> float:
            x = [y.detach().requires_grad_() for y in (q, k, v)]
            start = time.perf_counter()
            attend(*x).backward(g)
            return time.perf_counter() - start

        return once

    runs = {"sdpa": timed(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))}
    for name, mechanism in built.items():
        mechanism.eval()
        runs[name] = timed(lambda q, k, v, m=mechanism: m(q, k, v).values)
    return runs


def measure(lengths: list[int], repeats: int) -> None:
    for length in lengths:
        runs = contestants(length)
        for once in runs.values():
            once()
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(repeats):
            for name, once in runs.items():
                seconds[name].append(once())
        exact = seconds.pop("sdpa")
        print(f"n={length:6d}  sdpa {1e3 * statistics.median(exact):9.1f} ms", end="")
        for name, own in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(exact, own, strict=True))
            print(f"   {name} {1e3 * statistics.median(own):8.1f} ms = {ratio:5.2f}x faster", end="")
        print(flush=True)


def decode(past: list[int], steps: int = 64) -> None:
    """Microseconds per token after a past of each length."""
    import torch

    from regard.attention.kernel.linear import Linear
    from regard.attention.kernel.performer import Performer
    from regard.core import Heads

    heads = Heads(count=HEADS, key_dim=DIM, causal=True)
    for mechanism in (Linear(heads), Performer(heads, num_features=256)):
        mechanism.eval()
        line = []
        for length in past:
            with torch.no_grad():
                x = [torch.randn(1, HEADS, length, DIM) for _ in range(3)]
                state = mechanism(*x, state=mechanism.initial_state(1)).state
                token = [torch.randn(1, HEADS, 1, DIM) for _ in range(3)]
                laps = []
                for _ in range(steps):
                    start = time.perf_counter()
                    state = mechanism(*token, state=state).state
                    laps.append(time.perf_counter() - start)
            line.append(f"{length}: {1e6 * statistics.median(laps):.0f} us")
        print(f"decode, {type(mechanism).__name__.lower()}, per token after " + ", ".join(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--here", action="store_true", help="measure in this process, under its allocation")
    options = parser.parse_args()
    if options.here:
        import torch

        torch.set_num_threads(options.threads)
        measure(options.lengths, options.repeats)
        decode([256, 4096, 16384])
        return
    for label, fixed in (("fixed allocation", True), ("default allocation", False)):
        print(f"{label}, float32, {options.threads} threads, (1, {HEADS}, n, {DIM}), forward + backward", flush=True)
        command = [sys.executable, __file__, "--here", *sys.argv[1:]]
        subprocess.run(command, env=allocation(os.environ, fixed=fixed), check=True)


if __name__ == "__main__":
    main()
