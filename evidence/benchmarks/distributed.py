"""What several processes cost and gain: the plain command, torchrun with one process, and with two, in turns.

    python evidence/benchmarks/distributed.py               # some 8 minutes on two cores that nobody else uses
    python evidence/benchmarks/distributed.py 6             # as many turns, six at least

Each turn trains the same decoder (four blocks of width 256, 256 letters, 16 rows) for 24 steps from the start, on one
thread for each process, and reads the seconds of its steps from metrics.jsonl, where starting, evaluating and saving
are not counted; the first line, in which memory is still being allocated, is left out. Printed are medians over turns
of the ratios, and the interval between the order statistics that hold the true median with at least 95 %.
"""

import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from regard_lab.training import metrics

TURNS, STEPS, EVERY = 9, 24, 4
OPTIONS = (
    f"--model.dim 256 --model.heads 4 --model.layers 4 --task.length 256 --batch-size 16 --steps {STEPS} "
    f"--log-every {EVERY} --evaluate-examples 2 --threads 1"
)
SIDES = {
    "plain": (0, ""),
    "torchrun, 1 process": (1, ""),
    "torchrun, 2 processes": (2, ""),
    "torchrun, 2 processes, sharded": (2, "--parallel.shard"),
}


def seconds(processes: int, more: str, folder: Path) -> float:
    """Of the steps after the first line."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"] if processes else []
    words = [sys.executable, "-m", *launcher, "regard", "train", *OPTIONS.split(), *more.split(), "--out", str(folder)]
    subprocess.run(words, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    lines = [line["timing"] for line in metrics.read(folder / "metrics.jsonl") if line["kind"] == "train"]
    return sum(float(timing["seconds"]) for timing in lines[1:])  # type: ignore[index]


def asked(words: list[str], usual: int) -> int:
    """The turns that were asked for; of fewer than six even least and greatest are no bounds of 95 %."""
    turns = int(words[0]) if words else usual
    if turns < 6:
        raise SystemExit(f"{turns} turns give no interval of 95 %; ask for 6 or more")
    return turns


def interval(values: list[float]) -> tuple[float, float, float]:
    """Median and bounds of at least 95 % certainty, of six values or more in any order."""
    count, ordered = len(values), sorted(values)
    assert 2 / 2**count <= 0.05, f"{count} values have no such bounds"
    cut = 0
    while 2 * sum(math.comb(count, k) for k in range(cut + 1)) / 2**count <= 0.05:
        cut += 1
    return statistics.median(ordered), ordered[cut - 1], ordered[count - cut]


if __name__ == "__main__":
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(asked(sys.argv[1:], TURNS)):
            order = list(enumerate(SIDES.items()))
            for number, (side, (processes, more)) in order if turn % 2 else reversed(order):
                found[side].append(seconds(processes, more, Path(folder) / f"{turn}-{number}"))
    plain = found["plain"]
    print(f"plain: {statistics.median(plain):.2f} s for {STEPS - EVERY} steps")
    for side, what, beside in (
        ("torchrun, 1 process", "time / plain", "plain"),
        ("torchrun, 2 processes", "plain / time", "plain"),
        ("torchrun, 2 processes, sharded", "time / torchrun, 2 processes", "torchrun, 2 processes"),
    ):
        pairs = zip(found[beside], found[side], strict=True)
        middle, low, high = interval([a / b if what == "plain / time" else b / a for a, b in pairs])
        print(f"{side}: {what} {middle:.3f} ({low:.3f} to {high:.3f})")
