"""softmax against torch's own attention: overhead, masks, widths, decoding. Run: python evidence/benchmarks/dense.py

Every pair is timed in turns in one process, first under fixed allocation, then under glibc's default.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard.testing.counting import count
from regard_lab.benchmark.timing import allocation, paired

LENGTH, KEYS, TOKENS = 4096, 16384, 16


def tensors(length: int, *widths: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(1, 8, length, width, generator=draw).requires_grad_() for width in widths]


def step(call: Callable[..., Tensor], leaves: list[Tensor]) -> Callable[[], object]:
    return lambda: torch.autograd.grad(call(*leaves).sum(), leaves)


def forward(call: Callable[..., Tensor], leaves: list[Tensor]) -> Callable[[], object]:
    def run() -> Tensor:
        with torch.no_grad():
            return call(*leaves)

    return run


def compare(label: str, ours: Callable[[], object], theirs: Callable[[], object], rounds: int = 9) -> None:
    found = paired({"ours": ours, "theirs": theirs}, rounds=rounds, budget_seconds=30)
    one, two = found["ours"].seconds, found["theirs"].seconds
    print(f"  {label:58s} {one * 1e3:9.2f} ms {two * 1e3:9.2f} ms   ratio {one / two:.3f}", flush=True)


def overhead() -> None:
    keep = torch.rand(1, LENGTH, generator=torch.Generator().manual_seed(1)) > 0.1
    for causal in (False, True):
        leaves = tensors(LENGTH, 64, 64, 64)

        def ours(q: Tensor, k: Tensor, v: Tensor, causal: bool = causal) -> Tensor:
            return regard.attend(q, k, v, causal=causal)

        def theirs(q: Tensor, k: Tensor, v: Tensor, causal: bool = causal) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        def masked(q: Tensor, k: Tensor, v: Tensor, causal: bool = causal) -> Tensor:
            return regard.attend(q, k, v, causal=causal, key_mask=keep)

        for kind, run in (("forward", forward), ("forward + backward", step)):
            compare(f"attend, {causal=}, {kind}", run(ours, leaves), run(theirs, leaves))
        compare(f"attend with key_mask, {causal=}, forward + backward", step(masked, leaves), step(theirs, leaves), 3)


def widths() -> None:
    leaves = tensors(LENGTH, 64, 64, 32)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return regard.attend(q, k, v, causal=True)

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    one, two = count(step(ours, leaves)).largest, count(step(theirs, leaves)).largest
    print(
        f"  largest tensor, values of half the width: {one / LENGTH**2:.3f} n x n against {two / LENGTH**2:.3f} n x n"
    )
    compare("values of half the width, forward + backward", step(ours, leaves), step(theirs, leaves), 3)


def decoding() -> None:
    q, k, v = (x.detach() for x in tensors(KEYS, 64, 64, 64))
    mechanism = regard.build("softmax", regard.Heads(count=8, key_dim=64, causal=True)).eval()
    new = [x[:, :, :1] for x in (q, k, v)]

    def ours() -> Iterator[None]:
        state = mechanism.initial_state(1)
        state = mechanism(q[:, :, :1], k, v, state=state).state
        state = mechanism(*new, state=state).state
        while True:
            state = mechanism(*new, state=state).state
            yield

    def theirs() -> Iterator[None]:
        keys, values = k, v
        while True:
            keys, values = torch.cat([keys, new[1]], 2), torch.cat([values, new[2]], 2)
            F.scaled_dot_product_attention(new[0], keys, values)
            yield

    with torch.no_grad():
        one, two = ours(), theirs()
        compare(f"decoding, per token at {KEYS} keys", lambda: next(one), lambda: next(two), 41)
        compare(
            "  (the same, attention alone)", lambda: F.scaled_dot_product_attention(new[0], k, v), lambda: next(two), 41
        )


def main() -> None:
    if "--child" in sys.argv:
        torch.set_num_threads(2)
        print("  (1, 8, n, 64), float32, 2 threads                              ours        torch")
        overhead()
        widths()
        decoding()
        return
    for label, fixed in (("fixed allocation", True), ("default allocation", False)):
        print(label, flush=True)
        subprocess.run([sys.executable, __file__, "--child"], check=True, env=allocation(os.environ, fixed=fixed))


if __name__ == "__main__":
    main()
