"""Searches of the memory of the Memorizing Transformer: exact against FAISS's lists, side by side in one run.

    python evidence/benchmarks/memory_search.py --pairs 65536 262144

Keys and queries of a segment, and of one token, per head: what a call of `Memorizing.read` takes, its recall of what
the exact search finds, and what writing a segment takes beside it. Keys are drawn around themes, as those of a network
are, or around none, which is the worst case.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from regard.core.info import Heads
from regard.features.norms import unit
from regard.memory.memorizing import Memorizing


def drawn(count: int, themes: torch.Tensor | None, dim: int, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(1, 1, count, dim, generator=generator)
    if themes is None:
        return noise
    return themes[torch.randint(len(themes), (count,), generator=generator)][None, None] + 0.7 * noise


def timed(call: Callable[..., object], turns: int, *given: object, **named: object) -> float:
    seconds = []
    for _ in range(turns):
        before = time.process_time()
        call(*given, **named)
        seconds.append(time.process_time() - before)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, nargs="+", default=[65_536, 262_144])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--segment", type=int, default=512)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--probes", type=int, nargs="+", default=[4, 16, 64])
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("processor seconds, one head, one row, one thread; medians of", given.turns)
    for pairs in given.pairs:
        for kind in ("around 500 themes", "around none"):
            g = torch.Generator().manual_seed(pairs)
            themes = torch.randn(500, given.dim, generator=g) if "500" in kind else None
            k, v = drawn(pairs, themes, given.dim, g), torch.randn(1, 1, pairs, given.dim, generator=g)
            q = unit(drawn(given.segment, themes, given.dim, g), 1e-6)
            heads = Heads(count=1, key_dim=given.dim, causal=True)
            new = {"x": torch.zeros(1, given.segment, given.dim), "q": q, "project": None}
            new |= {"k": drawn(given.segment, themes, given.dim, g), "v": v[:, :, : given.segment]}
            local, wanted = torch.zeros(1, 1, given.segment, given.dim), None
            for options in ({}, *({"index": "ivf", "probes": probes} for probes in given.probes)):
                memory = Memorizing(heads, given.dim, pairs=pairs, top=32, **options)
                with torch.no_grad():
                    before = time.process_time()
                    state = memory.initial_state(1)
                    state = memory.write(state, torch.zeros(1, pairs, given.dim), q=q, k=k, v=v, project=None)[0]
                    filling = time.process_time() - before
                    places, _ = memory.found(q, state)
                    if wanted is None:
                        wanted = places
                    recall = (wanted[..., :, None] == places[..., None, :]).any(-1).double().mean().item()
                    segment = timed(memory.read, given.turns, q, local, state)
                    one = timed(memory.read, given.turns + 2, q[:, :, :1], local[:, :, :1], state)
                    write = timed(memory.write, given.turns, state, **new)
                name = f"ivf, probes={memory.probes}" if options else "exact"
                print(
                    f"{pairs:8,} pairs {kind:18} {name:15} segment of {given.segment} {segment:7.3f} s, "
                    f"a token {one * 1e3:7.2f} ms, writing a segment {write * 1e3:6.1f} ms, filling {filling:5.2f} s, "
                    f"recall@32 {recall:.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
