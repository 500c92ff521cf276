"""Ten million keys of 64 numbers: memory of building and of exact search, and search time beside FAISS.

Run: python evidence/benchmarks/datastore.py FOLDER [--entries 10000000] [--dim 64] [--queries 64] [--k 10]; some 5
minutes Building and exact search run in a process each, which watches its anonymous resident memory (RssAnon of
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
import time
from collections.abc import Callable
from pathlib import Path

import torch
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


def watched(work: Callable[[], None]) -> tuple[int, int]:
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


def built(folder: str, entries: int, dim: int) -> None:
    """Write the datastore."""
    with Datastore.create(folder, dim, vocab_size=VOCAB).adding() as writer:
        writer.begin("drawn", entries=entries)
        for first in range(0, entries, PIECE):
            count = min(PIECE, entries - first)
            values = torch.randint(VOCAB, (count,), generator=torch.Generator().manual_seed(first))
            writer.append(drawn(count, dim, first + 1), values)


def child(what: str, options: argparse.Namespace) -> None:
    """Build or search, and say what memory that took."""
    if what == "build":
        work = lambda: built(options.folder, options.entries, options.dim)  # noqa: E731
    else:
        store, queries = Datastore.open(options.folder), drawn(options.queries, options.dim, -1)
        work = lambda: print(f"nearest: {store.search(queries, options.k).distances[0, 0]:.2f}")  # noqa: E731
    began = time.perf_counter()
    most, before = watched(work)
    print(
        f"{what}: {most / 1e6:.0f} MB of anonymous memory at most, {(most - before) / 1e6:.0f} MB more than before, "
        f"{time.perf_counter() - began:.1f} s",
        flush=True,
    )


def main() -> None:
    """Both measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", choices=["build", "search"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.child is not None:
        child(options.child, options)
        return
    for what in ("search",) if Path(options.folder).exists() else ("build", "search"):
        subprocess.run([sys.executable, *sys.argv, "--child", what], check=True)
    import faiss

    faiss.omp_set_num_threads(1)
    store, queries = Datastore.open(options.folder, checked=False), drawn(options.queries, options.dim, -1)
    contestants = {"exact search": store, "FAISS flat": Index(store, "flat")}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(options.repeats + 1):
        for name in list(contestants)[:: 1 if turn % 2 else -1]:
            began = time.process_time()
            contestants[name].search(queries, options.k)
            if turn:
                seconds[name].append(time.process_time() - began)
    ratio = statistics.median(a / b for a, b in zip(*seconds.values(), strict=True))
    for name, times in seconds.items():
        print(
            f"{name}: {statistics.median(times):.2f} s of processor for {options.queries} queries, median of "
            f"{options.repeats} [{min(times):.2f}, {max(times):.2f}]",
            flush=True,
        )
    print(f"exact search takes {ratio:.2f} of the time of FAISS flat", flush=True)
    exact = store.search(queries, options.k)
    del contestants["FAISS flat"]
    began = time.process_time()
    index = Index(store, "ivf", centres=1024 if len(store) > 39 * 1024 else None)
    print(f"ivf: built in {time.process_time() - began:.0f} s of processor", flush=True)
    for probes in (1, 8, 32, 128):
        index._probe(probes)
        began = time.process_time()
        found = index.search(queries, options.k)
        spent = time.process_time() - began
        hits = sum(len(set(a) & set(b)) for a, b in zip(found.ids.tolist(), exact.ids.tolist(), strict=True))
        print(f"ivf, {probes} probes: recall@{options.k} {hits / exact.ids.numel():.3f}, {spent:.3f} s", flush=True)


if __name__ == "__main__":
    main()
