"""Causal `local(window=256)`, bare and with biases by distance, against causal scaled_dot_product_attention.

    python evidence/benchmarks/sparse.py                     # fixed allocation, then default allocation
    python evidence/benchmarks/sparse.py --lengths 4096 --repeats 9

Forward + backward, float32, (batch, heads, n, 64). Each round times every contestant once, so that a busy machine
slows all alike; a ratio is the median of the rounds' ratios. Under glibc's default allocation, tensors above 32 MiB are
faulted in again at every call, whoever makes them; the fixed figures keep freed memory, as a training run does.
"""

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from _pairs import DIM, HEADS, decode, laps, ratio, run, timed
from torch import Tensor

from regard.attention.sparse.local import Local
from regard.core.attention import Heads
from regard.engines.tiles.plan import Positions, find_plan
from regard.patterns import parse
from regard.position.alibi import Alibi
from regard.position.transformer_xl import TransformerXl

WINDOW = 256
TARGETS = "sdpa/local is to be at least 4 at n = 4096; alibi/local at most 1.25, transformer_xl/local at most 2.6"


def contestants(length: int, batch: int, kv_heads: int, masked: bool) -> dict[str, Callable[[], float]]:
    heads = Heads(count=HEADS, key_dim=DIM, kv_count=kv_heads, causal=True)
    local = Local(heads, window=WINDOW)
    alibi, relative = Alibi(heads, HEADS * DIM), TransformerXl(heads, HEADS * DIM)
    q, k, v = (torch.randn(batch, h, length, DIM) for h in (HEADS, kv_heads, kv_heads))
    keep = torch.ones(batch, length, dtype=torch.bool) if masked else None
    if keep is not None:
        keep[:, length - length // 10 :] = False
    low, high = local.bias_distances(length, length)
    places = torch.arange(length)

    def with_relative(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        moved, k = relative.transform(q, k, places, places)
        return local(moved, k, v, key_mask=keep, bias=relative.bias(q, low, high)).values

    grouped = kv_heads != HEADS
    calls: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped),
        "local": lambda q, k, v: local(q, k, v, key_mask=keep).values,
        "alibi": lambda q, k, v: local(q, k, v, key_mask=keep, bias=alibi.bias(q, low, high)).values,
        "transformer_xl": with_relative,
    }
    return {name: timed(call, q, k, v) for name, call in calls.items()}


def work(lengths: list[int], repeats: int) -> None:
    print(TARGETS)
    for length in lengths:
        for batch, kv_heads, masked in ((1, 8, False), (1, 8, True), (1, 2, False), (2, 8, False)):
            found = laps(contestants(length, batch, kv_heads, masked), repeats)
            line = [f"n={length:6d} batch={batch} kv_heads={kv_heads}{' masked' if masked else '       '}"]
            line += [f"{name} {1e3 * statistics.median(own):7.1f} ms" for name, own in found.items()]
            pairs = (("sdpa", "local"), ("alibi", "local"), ("transformer_xl", "local"))
            line += [f"{above}/{below} {ratio(found, above, below):.2f}" for above, below in pairs]
            print("  ".join(line), flush=True)
    lay_out(262_144)
    decode(f"local(window={WINDOW})", Local(Heads(count=HEADS, key_dim=DIM, causal=True), window=WINDOW))


def lay_out(length: int) -> None:
    """Seconds to lay out patterns on a long sequence, from nothing."""
    for text in ("causal & window(256)", "window(64) | first(16)", "causal & block(256)", "causal & strided(512)"):
        start, places = time.perf_counter(), Positions(0, length)
        like = {"device": torch.device("cpu"), "dtype": torch.float32}
        plan = find_plan(parse(text).text, places, places, whole=0, biased=False, **like)
        seconds, computed = time.perf_counter() - start, sum(layout.computed for layout in plan.of(0))
        print(f"layout of {text} at n={length}: {seconds:.2f} s, {computed / length:.0f} scores per query")


if __name__ == "__main__":
    run(__file__, __doc__, work, [1024, 4000, 4096, 8192])
