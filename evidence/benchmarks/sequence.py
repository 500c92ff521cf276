"""What processes that share every sequence cost and gain: one process, and two of them, in turns.

    python evidence/benchmarks/sequence.py                  # some 12 minutes on two cores that nobody else uses
    python evidence/benchmarks/sequence.py 6 softmax        # as many turns, six at least, of the mechanisms that are
    named

Each turn trains the same decoder (four blocks of width 128, one row of 4,096 letters) for 8 steps from the start, on
one thread for each process: `regard train`, and `torchrun --nproc-per-node 2 -m regard train --parallel.sequence 2`.
Seconds are those of the steps after the first two. Printed are medians over turns of the ratios, and the interval
between the order statistics that hold the true median with at least 95 %; and how many numbers a process sends in a
step for each of its positions, counted while a layer of that shape runs forward and backward.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from evidence.benchmarks.distributed import asked, interval
from regard import Heads, build
from regard.distributed import joined
from regard.distributed.sequence import Parts, attended
from regard_lab.training import metrics

TURNS, STEPS, EVERY, LENGTH = 6, 8, 2, 4096
OPTIONS = (
    f"--model.dim 128 --model.heads 4 --model.layers 4 --model.max-length {LENGTH} --task.length {LENGTH} "
    f"--batch-size 1 --steps {STEPS} --log-every {EVERY} --evaluate-examples 1 --threads 1"
)
MECHANISMS = ("softmax", "linear", "performer", "local(window=256)")


def seconds(spec: str, processes: int, folder: Path) -> float:
    """Of the steps after the first line."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    parallel = ["--parallel.sequence", str(processes)]
    if processes == 1:
        launcher, parallel = [], []
    words = [sys.executable, "-m", *launcher, "regard", "train", *OPTIONS.split(), *parallel]
    words += ["--model.attention", spec, "--out", str(folder)]
    subprocess.run(words, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    lines = [line["timing"] for line in metrics.read(folder / "metrics.jsonl") if line["kind"] == "train"]
    return sum(float(timing["seconds"]) for timing in lines[1:])  # type: ignore[index]


def counted() -> None:
    """Print the numbers that each process of `torchrun` sends for a position of one layer, and what they are."""
    with joined() as group:
        for spec in MECHANISMS:
            mechanism, parts = build(spec, Heads(count=4, key_dim=32, causal=True)), Parts(group)
            parts.begin(LENGTH // group.count)
            q, k, v = (torch.randn(1, 4, parts.length, 32, requires_grad=True) for _ in "qkv")
            attended(parts, mechanism, q, k, v).values.sum().backward()
            sent = group.gathered(parts.numbers)
            if not group.rank:
                shares = ", ".join(f"{number / parts.length:.1f}" for number in sent)
                print(f"{spec}: numbers sent by each process, by position of its part: {shares}", flush=True)


if __name__ == "__main__" and "RANK" in os.environ:
    counted()
elif __name__ == "__main__":
    turns, names = asked(sys.argv[1:], TURNS), sys.argv[2:]
    found: dict[str, list[tuple[float, float]]] = {spec: [] for spec in names or MECHANISMS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):
            for number, (spec, pairs) in enumerate(found.items()):
                times = {}
                for processes in (1, 2) if turn % 2 else (2, 1):
                    times[processes] = seconds(spec, processes, Path(folder) / f"{turn}-{number}-{processes}")
                pairs.append((times[1], times[2]))
    for spec, pairs in found.items():
        middle, low, high = interval([one / two for one, two in pairs])
        print(
            f"{spec}: {statistics.median(one for one, _ in pairs):.2f} s with one process, one / two {middle:.2f} "
            f"({low:.2f} to {high:.2f})",
            flush=True,
        )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    for processes in (2, 4):
        subprocess.run([*launch, str(processes), __file__], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
