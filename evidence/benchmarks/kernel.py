"""Kernel mechanisms against causal scaled_dot_product_attention, and performer-pytorch: medians, in turns.

    python evidence/benchmarks/kernel.py                     # fixed allocation, then default allocation
    python evidence/benchmarks/kernel.py --lengths 4096 --repeats 9

Forward + backward over lengths, float32, 8 heads of width 64; `performer` against performer-pytorch where that is
installed. linear-attention-transformer's causal form is no baseline: its queries skip their own bucket. Under glibc's
default allocation, tensors above 32 MiB are faulted in again at every call, whoever makes them; the fixed figures keep
freed memory, as a training run in steady state does.
"""

import importlib.util
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from _harness import arguments, show, turns, under_both_allocations, wall
from torch import Tensor

import regard

SPECS = ("linear", "performer(num_features=256)", "efficient", "rfa(redraw_interval=None)")
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def built(spec: str, causal: bool = True) -> Attend:
    mechanism = regard.build(spec, regard.Heads(count=8, key_dim=64, causal=causal)).eval()
    return lambda q, k, v: mechanism(q, k, v).values


def step(attend: Attend, length: int) -> Callable[[], float]:
    """Seconds of one forward + backward on fresh leaves."""
    q, k, v, gradient = torch.randn(4, 1, 8, length, 64, generator=torch.Generator().manual_seed(0))
    return lambda: wall(lambda: attend(*(x.detach().requires_grad_() for x in (q, k, v))).backward(gradient))


def second(once: Callable[[], float]) -> Callable[[], float]:
    """The second of two calls: gigabytes that the peer has just freed are trimmed, and the first faults its own in."""
    return lambda: (once(), once())[1]


def work() -> None:
    options = arguments(__doc__, lengths=[1024, 4096, 16384], repeats=7, threads=2)
    torch.set_num_threads(options.threads)
    for length in options.lengths:
        contestants: dict[str, Attend] = {"sdpa": partial(F.scaled_dot_product_attention, is_causal=True)}
        contestants |= {spec: built(spec) for spec in SPECS}
        found = turns({name: step(attend, length) for name, attend in contestants.items()}, options.repeats)
        show(f"causal, n={length}", found, *(("sdpa", spec) for spec in SPECS))
    if importlib.util.find_spec("performer_pytorch") is None:
        print("performer-pytorch is not installed: not compared", flush=True)
        return
    from performer_pytorch.performer_pytorch import FastAttention

    length = min(4096, max(options.lengths))
    for causal in (True, False):
        theirs = FastAttention(64, nb_features=256, causal=causal).eval()
        both = {"performer-pytorch": theirs, "performer": built(SPECS[1], causal)}
        found = turns({name: second(step(attend, length)) for name, attend in both.items()}, options.repeats)
        show(f"{causal=}, n={length}", found, ("performer-pytorch", "performer"))


if __name__ == "__main__":
    under_both_allocations(work)
