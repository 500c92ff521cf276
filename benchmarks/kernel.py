"""Causal `linear` and `performer` against causal scaled_dot_product_attention: medians, paired in one run.

    python benchmarks/kernel.py                     # fixed allocation, then default allocation
    python benchmarks/kernel.py --lengths 4096 --repeats 9

Forward + backward. Under glibc's default allocation, tensors above 32 MiB are faulted in again at every call, whoever
makes them; the fixed figures keep freed memory, as a training run in steady state does.
"""

import statistics

import torch
import torch.nn.functional as F
from _pairs import DIM, HEADS, decode, laps, ratio, run, timed

import regard

SPECS = ("linear", "performer(num_features=256)")


def work(lengths: list[int], repeats: int) -> None:
    heads = regard.Heads(count=HEADS, key_dim=DIM, causal=True)
    built = {spec: regard.build(spec, heads).eval() for spec in SPECS}
    for length in lengths:
        q, k, v = torch.randn(3, 1, HEADS, length, DIM)
        runs = {"sdpa": timed(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)}
        runs |= {spec: timed(lambda q, k, v, m=m: m(q, k, v).values, q, k, v) for spec, m in built.items()}
        found = laps(runs, repeats)
        line = [f"n={length:6d}"] + [f"{name} {1e3 * statistics.median(own):8.1f} ms" for name, own in found.items()]
        line += [f"sdpa/{spec.split('(')[0]} {ratio(found, 'sdpa', spec):.2f}" for spec in SPECS]
        print("  ".join(line), flush=True)
    for spec, mechanism in built.items():
        decode(spec, mechanism)


if __name__ == "__main__":
    run(__file__, __doc__, work, [1024, 4096, 16384])
