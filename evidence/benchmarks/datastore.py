"""Ten million keys of 64 numbers: memory of building and of exact search, and search time beside FAISS.

Run: python evidence/benchmarks/datastore.py FOLDER [--entries 10000000] [--dim 64] [--queries 64] [--k 10]; some 5
minutes. Building and exact search run in a process each, which watches its anonymous resident memory (RssAnon of
/proc/self/status) every 10 ms and says by how much it rose over what it was before, and the most that it was. Exact
search and FAISS flat then search the same queries in turns in one process, on one thread, after a turn that does not
count; the index of kind ivf with 1,024 centres says its recall@10 against exact search for several numbers of probes.
Keys, and queries like them, are drawn around 4,096 centres, which are hardly farther apart than what is around each.
"""

import argparse
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from _harness import arguments, processor, ratio, turns, wall
from torch import Tensor

from regard_lab.retrieval import Datastore, Index

VOCAB = 50_000
CENTRES = 4096
PIECE = 1 << 16


def drawn(entries: int, dim: int, seed: int, scale: float = 1.0) -> Tensor:
    """Keys around centres that are always the same."""
    centres = torch.randn(CENTRES, dim, generator=torch.Generator().manual_seed(0))
    draw = torch.Generator().manual_seed(seed)
    return centres[torch.randint(CENTRES, (entries,), generator=draw)] + scale * torch.randn(
        entries, dim, generator=draw
    )


def anonymous() -> int:
    """Bytes of anonymous resident memory now."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def watched(work: Callable[[], object]) -> tuple[int, int]:
    """Most anonymous memory while it works, and what there was before."""
    before, over = anonymous(), threading.Event()
    most = before

    def watch() -> None:
        nonlocal most
        while not over.wait(0.01):
            most = max(most, anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    work()
    over.set()
    thread.join()
    return max(most, anonymous()), before


def built(folder: Path, entries: int, dim: int) -> None:
    """Write the datastore."""
    with Datastore.create(folder, dim, vocab_size=VOCAB).adding() as writer:
        writer.begin("drawn", entries=entries)
        for first in range(0, entries, PIECE):
            count = min(PIECE, entries - first)
            values = torch.randint(VOCAB, (count,), generator=torch.Generator().manual_seed(first))
            writer.append(drawn(count, dim, first + 1), values)


def child(options: argparse.Namespace) -> None:
    """Build or search, and print what memory that took."""
    work = partial(built, options.folder, options.entries, options.dim)
    if options.child == "search":
        store, queries = Datastore.open(options.folder), drawn(options.queries, options.dim, -1)
        work = partial(store.search, queries, options.k)
    memory: list[int] = []
    seconds = wall(lambda: memory.extend(watched(work)))
    most, before = memory
    print(
        f"{options.child}: {most / 1e6:.0f} MB of anonymous memory at most, {(most - before) / 1e6:.0f} MB more than "
        f"before, {seconds:.1f} s",
        flush=True,
    )


def main() -> None:
    """Both measurements."""
    options = arguments(
        __doc__, folder=Path("runs/datastore"), entries=10_000_000, dim=64, queries=64, k=10, repeats=5, child=""
    )
    torch.set_num_threads(1)
    if options.child:
        child(options)
        return
    for what in ("search",) if options.folder.exists() else ("build", "search"):
        subprocess.run([sys.executable, *sys.argv, "--child", what], check=True)
    import faiss

    faiss.omp_set_num_threads(1)
    store, queries = Datastore.open(options.folder, checked=False), drawn(options.queries, options.dim, -1)
    search = partial(store.search, queries, options.k)
    flat = partial(Index(store, "flat").search, queries, options.k)
    found = turns({"exact": partial(processor, search), "FAISS flat": partial(processor, flat)}, options.repeats)
    for name, times in found.items():
        print(f"{name}: {statistics.median(times):.2f} s of processor [{min(times):.2f}, {max(times):.2f}]", flush=True)
    print(f"exact search over FAISS flat: {ratio(found, 'exact', 'FAISS flat')}", flush=True)
    exact = search()
    index = Index(store, "ivf", centres=1024 if len(store) > 39 * 1024 else None)
    for probes in (1, 8, 32, 128):
        index._probe(probes)
        found = index.search(queries, options.k)
        spent = processor(lambda: index.search(queries, options.k))
        hits = sum(len(set(a) & set(b)) for a, b in zip(found.ids.tolist(), exact.ids.tolist(), strict=True))
        print(f"ivf, {probes} probes: recall@{options.k} {hits / exact.ids.numel():.3f}, {spent:.3f} s", flush=True)


if __name__ == "__main__":
    main()
