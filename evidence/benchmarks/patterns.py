"""Sparse mechanisms beside the package local-attention and dense attention: time, shares of the rate, peak memory.

    python evidence/benchmarks/patterns.py                     # fixed allocation, then default allocation
    python evidence/benchmarks/patterns.py --lengths 1024 --repeats 9

Rows, each recorded and none asserted: `local(window=256)` against local-attention at the same exact window; the unions
of Child et al. against causal attention; every sparse mechanism that keeps at most a quarter of the pairs that dense
attention computes; the share of dense attention's rate, counting kept pairs; peak memory of a fixed window.
"""

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from _pairs import DIM, HEADS, laps, ratio, run, timed
from torch import Tensor

import regard
from regard.core.attention import Attention

WINDOW = 256
UNIONS = ("strided_union(stride=64)", "fixed_union(stride=64,columns=8)")
SPARSE = (
    "local(window=64)",
    "atrous(dilation=8)",
    "local_atrous(window=32,dilation=16)",
    "strided(stride=64)",
    "fixed(stride=64,columns=8)",
    "strided_union(stride=64)",
    "fixed_union(stride=64,columns=8)",
    "image_local_1d(block_size=64)",
    "image_local_2d(width=32,query_block=(4,8),flange=(4,8))",
    "blockwise(blocks=8)",
    "longformer(window=64)",
    "bigbird(block_size=64,num_random=1)",
    "etc(window=64)",
    "pattern(rule='window(32) | strided(64)')",
)
LONG, LONG_HEADS = 65_536, 4

Call = Callable[[Tensor, Tensor, Tensor], Tensor]


def built(spec: str, length: int) -> Attention:
    """Causal where the mechanism can be."""
    causal = regard.describe(spec).supports.causal
    return regard.build(spec, regard.Heads(count=HEADS, key_dim=DIM, causal=causal, max_length=length)).eval()


def dense(causal: bool) -> Call:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def kept(spec: str, length: int) -> float:
    """The share of the pairs of dense attention, causal or not, that carry weight; the average over heads."""
    mechanism = built(spec, length)
    q, k = torch.randn(2, 1, HEADS, length, DIM)
    with torch.no_grad():
        matrix = regard.weights(mechanism, q, k)
    pairs = length * (length + 1) / 2 if mechanism.heads.causal else length**2
    return float((matrix != 0).sum()) / HEADS / pairs


def against(call: Call, spec: str, length: int, repeats: int) -> float:
    """How many times longer `call` takes, forward + backward."""
    q, k, v = torch.randn(3, 1, HEADS, length, DIM)
    mechanism = built(spec, length)
    found = laps({"peer": timed(call, q, k, v), "ours": timed(lambda *x: mechanism(*x).values, q, k, v)}, repeats)
    return ratio(found, "peer", "ours")


def package(repeats: int) -> None:
    """local-attention, one head of the window's width before and the exact window inside."""
    if find_spec("local_attention") is None:
        print("local-attention is not installed")
        return
    published = import_module("local_attention").LocalAttention
    for length in (4096, 8192):
        theirs = published(
            window_size=WINDOW, causal=True, look_backward=1, look_forward=0, exact_windowsize=True, autopad=True,
            use_rotary_pos_emb=False,
        )  # fmt: skip
        spec = f"local(window={WINDOW})"
        print(f"n = {length}: local-attention / {spec} {against(theirs, spec, length, repeats):.2f}", flush=True)


def rates(length: int, repeats: int) -> None:
    """The share of dense attention's rate, forward and forward + backward."""
    spec = f"local(window={WINDOW})"
    q, k, v = torch.randn(3, 1, HEADS, length, DIM)
    mechanism = built(spec, length)
    pairs = sum(min(i, WINDOW) + 1 for i in range(length))

    def forward(call: Call) -> Callable[[], float]:
        def once() -> float:
            with torch.no_grad():
                start = time.perf_counter()
                call(q, k, v)
                return time.perf_counter() - start

        return once

    calls: dict[str, Call] = {"dense": dense(causal=False), "ours": lambda *x: mechanism(*x).values}
    for what, make in (("forward", forward), ("forward + backward", lambda call: timed(call, q, k, v))):
        found = laps({name: make(call) for name, call in calls.items()}, max(3, repeats // 2))
        share = ratio(found, "dense", "ours") * pairs / length**2
        print(f"n = {length}: {spec}, {what}: {share:.0%} of the rate of dense attention", flush=True)


def peak() -> float:
    """GB above the inputs of a forward + backward pass at length LONG; for a process of its own."""
    heads = regard.Heads(count=LONG_HEADS, key_dim=DIM, causal=True)
    mechanism = regard.build(f"local(window={WINDOW})", heads)
    mechanism(*torch.randn(3, 1, LONG_HEADS, 512, DIM))
    leaves = [x.requires_grad_() for x in torch.randn(3, 1, LONG_HEADS, LONG, DIM).unbind()]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mechanism(*leaves).values.sum().backward()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6


def work(lengths: list[int], repeats: int) -> None:
    package(repeats)
    for spec in UNIONS:
        times = against(dense(causal=True), spec, 16_384, max(3, repeats // 2))
        print(f"n = 16384: causal dense / {spec} {times:.2f}", flush=True)
    rates(16_384, repeats)
    for length in lengths:
        found = {spec: kept(spec, length) for spec in SPARSE}
        for spec, share in found.items():
            if share <= 0.25:
                times = against(dense(regard.describe(spec).supports.causal), spec, length, repeats)
                print(f"n = {length}: keeps {share:.1%}, dense / {spec} {times:.2f}", flush=True)
        print(f"n = {length}: median share kept {statistics.median(found.values()):.1%}", flush=True)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(f"n = {LONG}, {LONG_HEADS} heads, window {WINDOW}: peak {pool.apply(peak):.2f} GB above the inputs")


if __name__ == "__main__":
    run(__file__, __doc__, work, [1024, 2048])
