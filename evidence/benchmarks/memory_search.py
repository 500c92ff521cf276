"""Searches of the memory of the Memorizing Transformer: exact against FAISS's lists, side by side in one run.

    python evidence/benchmarks/memory_search.py --pairs 65536 262144

Processor seconds for keys and queries of a segment, and of one token, per head: what a call of `Memorizing.read` takes,
its recall of what the exact search finds, and what writing a segment takes beside it. Keys are drawn around themes, as
those of a network are, or around none, which is the worst case.
"""

import statistics
from collections.abc import Callable

import torch
from _harness import arguments, processor

from regard.core.info import Heads
from regard.features.norms import unit
from regard.memory.memorizing import Memorizing


def drawn(count: int, themes: torch.Tensor | None, dim: int, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(1, 1, count, dim, generator=generator)
    if themes is None:
        return noise
    return themes[torch.randint(len(themes), (count,), generator=generator)][None, None] + 0.7 * noise


def median(count: int, call: Callable[[], object]) -> float:
    return statistics.median(processor(call) for _ in range(count))


@torch.no_grad()
def main() -> None:
    given = arguments(__doc__, pairs=[65_536, 262_144], dim=64, segment=512, turns=3, probes=[4, 16, 64])
    torch.set_num_threads(1)
    heads = Heads(count=1, key_dim=given.dim, causal=True)
    for pairs in given.pairs:
        for kind in ("around 500 themes", "around none"):
            g = torch.Generator().manual_seed(pairs)
            themes = torch.randn(500, given.dim, generator=g) if "500" in kind else None
            k, v = drawn(pairs, themes, given.dim, g), torch.randn(1, 1, pairs, given.dim, generator=g)
            q = unit(drawn(given.segment, themes, given.dim, g), 1e-6)
            x, new = torch.zeros(1, given.segment, given.dim), drawn(given.segment, themes, given.dim, g)
            local, wanted = torch.zeros(1, 1, given.segment, given.dim), None
            for options in ({}, *({"index": "ivf", "probes": probes} for probes in given.probes)):
                memory = Memorizing(heads, given.dim, pairs=pairs, top=32, **options)
                state = memory.initial_state(1)
                state = memory.write(state, torch.zeros(1, pairs, given.dim), q=q, k=k, v=v, project=None)[0]
                places, _ = memory.found(q, state)
                wanted = places if wanted is None else wanted
                recall = (wanted[..., :, None] == places[..., None, :]).any(-1).double().mean().item()
                segment = median(given.turns, lambda m=memory, s=state: m.read(q, local, s))  # noqa: B023
                one = median(given.turns + 2, lambda m=memory, s=state: m.read(q[:, :, :1], local[:, :, :1], s))  # noqa: B023
                part = {"x": x, "q": q, "k": new, "v": v[:, :, : given.segment], "project": None}
                write = median(given.turns, lambda m=memory, s=state, part=part: m.write(s, **part))
                name = f"ivf, probes={memory.probes}" if options else "exact"
                print(
                    f"{pairs:8,} pairs {kind:18} {name:15} segment of {given.segment} {segment:7.3f} s, "
                    f"a token {one * 1e3:7.2f} ms, writing a segment {write * 1e3:6.1f} ms, recall@32 {recall:.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
