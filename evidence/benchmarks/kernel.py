"""Kernel mechanisms against causal scaled_dot_product_attention, performer-pytorch and the machine: medians, paired.

    python evidence/benchmarks/kernel.py                     # fixed allocation, then default allocation
    python evidence/benchmarks/kernel.py --lengths 4096 --repeats 9

Rows, each recorded and none asserted: forward + backward over lengths; `performer` against performer-pytorch, where
that is installed; the share of the float32 matrix-product peak (operations counted at chunk 64, products of the feature
maps included); peak memory at 262,144 tokens; decoding. linear-attention-transformer's causal form is no baseline: its
queries skip their own bucket.

Under glibc's default allocation, tensors above 32 MiB are faulted in again at every call, whoever makes them; the fixed
figures keep freed memory, as a training run in steady state does.
"""

import importlib.util
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from _pairs import DIM, HEADS, Laps, laps, ratio, run, timed
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard.core.attention import Attention

SPECS = ("linear", "performer(num_features=256)", "efficient", "rfa(redraw_interval=None)")
PEERS = ("linear", "performer(num_features=256)")
PEAK_SIDE = 2048
LONG = 262_144
PASTS = (1024, 8192, 65_536)


def built(spec: str, causal: bool = True) -> Attention:
    return regard.build(spec, regard.Heads(count=HEADS, key_dim=DIM, causal=causal)).eval()


def forward(attend: Callable[[Tensor, Tensor, Tensor], object], *x: Tensor) -> Callable[[], float]:
    """One forward pass without gradients, in seconds."""

    def once() -> float:
        start = time.perf_counter()
        with torch.no_grad():
            attend(*x)
        return time.perf_counter() - start

    return once


def second(once: Callable[[], float]) -> Callable[[], float]:
    """The second of two calls: gigabytes that the peer has just freed are trimmed, and the first faults its own in."""
    return lambda: (once(), once())[1]


def show(label: str, found: Laps, *pairs: tuple[str, str]) -> None:
    """Medians, and medians of the ratios of turns."""
    line = [label] + [f"{name} {1e3 * statistics.median(own):.1f} ms" for name, own in found.items()]
    line += [f"{above} / {below} {ratio(found, above, below):.2f}" for above, below in pairs]
    print("  ".join(line), flush=True)


def against_softmax(lengths: list[int], repeats: int) -> None:
    mechanisms = {spec.split("(")[0]: built(spec) for spec in SPECS}
    for length in lengths:
        q, k, v = torch.randn(3, 1, HEADS, length, DIM)
        runs = {"sdpa": timed(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)}
        runs |= {name: timed(lambda q, k, v, m=m: m(q, k, v).values, q, k, v) for name, m in mechanisms.items()}
        show(f"causal, forward + backward, n={length}:", laps(runs, repeats), *(("sdpa", name) for name in mechanisms))


def against_performer_pytorch(length: int, repeats: int) -> None:
    if importlib.util.find_spec("performer_pytorch") is None:
        print("performer-pytorch is not installed: not compared", flush=True)
        return
    from performer_pytorch.performer_pytorch import FastAttention

    q, k, v = torch.randn(3, 1, HEADS, length, DIM)
    for causal in (True, False):
        ours, theirs = built(PEERS[1], causal), FastAttention(DIM, nb_features=256, causal=causal).eval()
        both = {"performer-pytorch": theirs, "performer": lambda q, k, v, m=ours: m(q, k, v).values}
        label = f"{'causal' if causal else 'bidirectional'}, n={length}"
        for what, measure in (("forward", forward), ("forward + backward", timed)):
            found = laps({name: second(measure(attend, q, k, v)) for name, attend in both.items()}, repeats)
            show(f"{label}, {what}:", found, ("performer-pytorch", "performer"))


def share_of_peak(length: int, repeats: int) -> None:
    a, b = torch.randn(2, PEAK_SIDE, PEAK_SIDE)
    q, k, v = torch.randn(3, 1, HEADS, length, DIM)
    for spec in PEERS:
        attend = built(spec)
        for what, measure in (("forward", forward), ("forward + backward", timed)):
            once = measure(lambda q, k, v, m=attend: m(q, k, v).values, q, k, v)
            with FlopCounterMode(display=False) as counter:
                once()
            found = laps({"product": forward(lambda a, b, _: a @ b, a, b, a), spec: once}, repeats)
            share = ratio(found, "product", spec) * counter.get_total_flops() / (2 * PEAK_SIDE**3)
            peak = 2 * PEAK_SIDE**3 / statistics.median(found["product"])
            print(f"share of {peak / 1e9:.0f} GFLOP/s, n={length}, {spec}, {what}: {share:.2f}", flush=True)


def memory(spec: str, backward: bool, answer: multiprocessing.SimpleQueue) -> None:
    """Peak GB above q, k, v and the gradient given to the backward pass. In a process of its own."""
    q, k, v, g = torch.randn(4, 1, HEADS, LONG, DIM).unbind()
    leaves = [x.requires_grad_(backward) for x in (q, k, v)]
    attend = built(spec)
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    values = attend(*leaves).values
    if backward:
        values.backward(g)
    answer.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) * 1024 / 1e9)


def peak_memory() -> None:
    context = multiprocessing.get_context("spawn")
    for spec in PEERS:
        for backward in (False, True):
            answer = context.SimpleQueue()
            child = context.Process(target=memory, args=(spec, backward, answer))
            child.start()
            child.join()
            what = "forward + backward" if backward else "forward"
            print(f"peak memory above the inputs, n={LONG}, {spec}, {what}: {answer.get():.2f} GB", flush=True)


def decoding(steps: int = 200) -> None:
    """Per token after each past, in turns; the first two tokens of a turn, which find another's cache, do not count.

    One query and many keys fill a state at once.
    """
    specs = ("softmax", *SPECS, "rfa(gate=True, redraw_interval=None)")
    found: Laps = {}
    states, mechanisms = {}, {spec: built(spec) for spec in specs}
    for spec, m in mechanisms.items():
        for past in PASTS:
            q, k, v = torch.randn(3, 1, HEADS, past, DIM)
            with torch.no_grad():
                states[spec, past] = m(q[:, :, -1:], k, v, state=m.initial_state(1)).state
    token = torch.randn(3, 1, HEADS, 1, DIM)
    with torch.no_grad():
        for _ in range(steps):
            for spec, past in states:
                for _ in range(3):
                    start = time.perf_counter()
                    states[spec, past] = mechanisms[spec](*token, state=states[spec, past]).state
                found.setdefault(f"{spec} {past}", []).append(time.perf_counter() - start)
    for spec in specs:
        line = [
            f"{past}: {1e6 * statistics.median(found[f'{spec} {past}']):.0f} us, "
            f"{states[spec, past].nbytes / 1024:.0f} KiB, "
            f"softmax / this {ratio(found, f'softmax {past}', f'{spec} {past}'):.2f}"
            for past in PASTS
        ]
        growth = ratio(found, f"{spec} {PASTS[-1]}", f"{spec} {PASTS[0]}")
        print(f"decode, {spec}, per token after " + "; ".join(line) + f"; last / first {growth:.2f}", flush=True)


def work(lengths: list[int], repeats: int) -> None:
    against_softmax(lengths, repeats)
    against_performer_pytorch(min(4096, max(lengths)), repeats)
    share_of_peak(max(lengths), repeats)
    decoding()
    peak_memory()


if __name__ == "__main__":
    run(__file__, __doc__, work, [1024, 4096, 16384])
