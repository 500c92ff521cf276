"""What processes that share every sequence cost and gain: one process, and two of them, in turns.

    python evidence/benchmarks/sequence.py                  # some 12 minutes on two cores that nobody else uses
    python evidence/benchmarks/sequence.py --turns 6 --mechanisms softmax

Each turn trains the same decoder (four blocks of width 128, one row of 4,096 letters) for 8 steps from the start, on
one thread for each process: `regard train`, and `torchrun --nproc-per-node 2 -m regard train --parallel.sequence 2`.
Seconds are those of the steps after the first two. Printed besides is how many numbers a process sends in a step for
each of its positions, counted while a layer of that shape runs forward and backward.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from _harness import LEAST_TURNS, arguments, environment, show, turns

from regard import Heads, build
from regard.distributed import joined
from regard.distributed.sequence import Parts, attended
from regard_lab.training import metrics

MECHANISMS = ["softmax", "linear", "performer", "local(window=256)"]
TRAIN = (
    "regard train --model.dim 128 --model.heads 4 --model.layers 4 --task.length {length} --model.max-length {length} "
    "--batch-size 1 --steps 8 --log-every 2 --evaluate-examples 1 --threads 1"
)


def launched(processes: int, *words: str) -> None:
    """A module or a script in so many processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else []), *words]
    shown = subprocess.DEVNULL if words[0] == "-m" else None
    subprocess.run(command, check=True, env=environment(fixed=False, OMP_NUM_THREADS="1"), stdout=shown, stderr=shown)


def seconds(spec: str, processes: int, length: int) -> float:
    """Of the steps of a training after the first line of its metrics."""
    parallel = ["--parallel.sequence", str(processes)] if processes > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = TRAIN.format(length=length).split()
        launched(processes, "-m", *words, *parallel, "--model.attention", spec, "--out", str(out))
        lines = [line["timing"] for line in metrics.read(out / "metrics.jsonl") if line["kind"] == "train"]
    return sum(float(timing["seconds"]) for timing in lines[1:])  # type: ignore[index]


def counted(mechanisms: list[str], length: int) -> None:
    """Print the numbers that each process of `torchrun` sends for a position of one layer, and what they are."""
    with joined() as group:
        for spec in mechanisms:
            mechanism, parts = build(spec, Heads(count=4, key_dim=32, causal=True)), Parts(group)
            parts.begin(length // group.count)
            q, k, v = (torch.randn(1, 4, parts.length, 32, requires_grad=True) for _ in "qkv")
            attended(parts, mechanism, q, k, v).values.sum().backward()
            sent = group.gathered(parts.numbers)
            if not group.rank:
                shares = ", ".join(f"{number / parts.length:.1f}" for number in sent)
                print(f"{spec}: numbers sent by each process, by position of its part: {shares}", flush=True)


def main() -> None:
    options = arguments(__doc__, turns=LEAST_TURNS, length=4096, mechanisms=MECHANISMS)
    if "RANK" in os.environ:
        counted(options.mechanisms, options.length)
        return
    for spec in options.mechanisms:
        runs = {name: lambda s=spec, n=n: seconds(s, n, options.length) for name, n in (("one", 1), ("two", 2))}
        show(f"{spec}, processes", turns(runs, options.turns, warm=False), ("one", "two"))
    for processes in (2, 4):
        launched(processes, *sys.argv)


if __name__ == "__main__":
    main()
