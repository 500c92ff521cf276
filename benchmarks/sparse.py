"""Causal `local(window=256)`, bare and with biases by distance, against causal scaled_dot_product_attention.

    python benchmarks/sparse.py                     # fixed allocation, then default allocation
    python benchmarks/sparse.py --lengths 4096 --repeats 9

Forward + backward, float32, (batch, heads, n, 64). Each round times every contestant once, so that a busy machine
slows all alike; a ratio is the median of the rounds' ratios. Under glibc's default allocation, tensors above 32 MiB are
faulted in again at every call, whoever makes them; the fixed figures keep freed memory, as a training run does.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from regard.benchmark.timing import allocation

HEADS, DIM, WINDOW = 8, 64, 256


def contestants(length: int, batch: int, kv_heads: int, masked: bool) -> dict[str, Callable[[], float]]:
    """One timed forward + backward of each, in seconds."""
    import torch
    import torch.nn.functional as F

    from regard.attention.sparse.local import Local
    from regard.core import Heads
    from regard.position.alibi import Alibi
    from regard.position.transformer_xl import TransformerXl

    heads = Heads(count=HEADS, key_dim=DIM, kv_count=kv_heads, causal=True)
    local = Local(heads, window=WINDOW)
    alibi, relative = Alibi(heads, HEADS * DIM), TransformerXl(heads, HEADS * DIM)
    q, k, v, g = (torch.randn(batch, h, length, DIM) for h in (HEADS, kv_heads, kv_heads, HEADS))
    keep = torch.ones(batch, length, dtype=torch.bool) if masked else None
    if keep is not None:
        keep[:, length - length // 10 :] = False
    low, high = local.reach(length, length)
    places = torch.arange(length)

    def timed(attend: Callable) -> Callable[[], float]:
        def once() -> float:
            x = [y.detach().requires_grad_() for y in (q, k, v)]
            start = time.perf_counter()
            attend(*x).backward(g)
            return time.perf_counter() - start

        return once

    def with_relative(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        moved, k = relative.transform(q, k, places, places)
        return local(moved, k, v, key_mask=keep, bias=relative.bias(q, low, high)).values

    grouped = kv_heads != HEADS
    return {
        "sdpa": timed(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)),
        "local": timed(lambda q, k, v: local(q, k, v, key_mask=keep).values),
        "alibi": timed(lambda q, k, v: local(q, k, v, key_mask=keep, bias=alibi.bias(q, low, high)).values),
        "transformer_xl": timed(with_relative),
    }


def measure(lengths: list[int], repeats: int) -> None:
    print(
        "sdpa / local is to be at least 4 at n = 4096; alibi / local at most 1.25, transformer_xl / local at most 2.6"
    )
    for length in lengths:
        for batch, kv_heads, masked in ((1, 8, False), (1, 8, True), (1, 2, False), (2, 8, False)):
            runs = contestants(length, batch, kv_heads, masked)
            for once in runs.values():
                once()
            laps: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(repeats):
                for name, once in runs.items():
                    laps[name].append(once())

            def ratio(above: str, below: str, laps: dict[str, list[float]] = laps) -> float:
                return statistics.median(a / b for a, b in zip(laps[above], laps[below], strict=True))

            label = f"n={length:6d} batch={batch} kv_heads={kv_heads}{' masked' if masked else '       '}"
            times = "  ".join(f"{name} {1e3 * statistics.median(own):7.1f} ms" for name, own in laps.items())
            print(
                f"{label}  {times}  sdpa/local {ratio('sdpa', 'local'):.2f}  alibi/local {ratio('alibi', 'local'):.2f}"
                f"  transformer_xl/local {ratio('transformer_xl', 'local'):.2f}",
                flush=True,
            )


def lay_out(length: int) -> None:
    """Seconds to lay out patterns on a long sequence, from nothing."""
    import torch

    from regard.attention.tiles._layout import TILE, make_layout
    from regard.masks import parse

    for text in ("causal & window(256)", "window(64) | first(16)", "causal & block(256)"):
        start = time.perf_counter()
        positions = torch.arange(length)
        made = make_layout(parse(text), positions, positions, (TILE, TILE), False, positions.device, torch.float32)
        seconds = time.perf_counter() - start
        print(f"layout of {text} at n={length}: {seconds:.2f} s, {made.computed / length:.0f} scores per query")


def decode(past: list[int], steps: int = 64) -> None:
    """Microseconds per token after a past of each length."""
    import torch

    from regard.attention.sparse.local import Local
    from regard.core import Heads

    local, line = Local(Heads(count=HEADS, key_dim=DIM, causal=True), window=WINDOW), []
    for length in past:
        with torch.no_grad():
            x = [torch.randn(1, HEADS, length, DIM) for _ in range(3)]
            state = local(*x, state=local.initial_state(1)).state
            token = [torch.randn(1, HEADS, 1, DIM) for _ in range(3)]
            laps = []
            for _ in range(steps):
                start = time.perf_counter()
                state = local(*token, state=state).state
                laps.append(time.perf_counter() - start)
        line.append(f"{length}: {1e6 * statistics.median(laps):.0f} us, {state.nbytes / 1024:.0f} KiB")
    print(f"decode, local(window={WINDOW}), per token after " + ", ".join(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4000, 4096, 8192])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--here", action="store_true", help="measure in this process, under its allocation")
    options = parser.parse_args()
    if options.here:
        import torch

        torch.set_num_threads(options.threads)
        measure(options.lengths, options.repeats)
        lay_out(262_144)
        decode([256, 4096, 16384])
        return
    for label, fixed in (("fixed allocation", True), ("default allocation", False)):
        print(
            f"{label}, float32, {options.threads} threads, (batch, {HEADS}, n, {DIM}), forward + backward", flush=True
        )
        command = [sys.executable, __file__, "--here", *sys.argv[1:]]
        subprocess.run(command, env=allocation(os.environ, fixed=fixed), check=True)


if __name__ == "__main__":
    main()
