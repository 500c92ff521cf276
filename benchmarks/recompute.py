"""Memory of one training step of a deep `sparse_transformer`: nothing, attention or whole blocks computed again.

    python benchmarks/recompute.py                          # 100 layers of blocks at 16,384 tokens, others at 4 layers
    python benchmarks/recompute.py --layers 8 --length 4096

Forward, backward and AdamW, float32, dim 64, batch 1, strided with a head for each set. Peak resident memory is above
that of the process with its model and before the step. What a layer takes is the slope between two depths, each
measured in a process of its own; freed memory stays with the process (fixed allocation), as in a training run.
"""

import argparse
import os
import resource
import subprocess
import sys
import time

import torch
from torch.nn.functional import cross_entropy

from regard.benchmark.timing import allocation
from regard.models import LanguageModel, presets

TARGET = "100 layers at 16,384 tokens, checkpoint=block: at most 1.0 GB above the model"


def step(layers: int, length: int, again: str) -> None:
    """One step; prints seconds, and bytes at the peak above those before."""
    config = presets.build(
        "sparse_transformer",
        pattern="strided",
        combine="heads",
        dim=64,
        heads=2,
        layers=layers,
        max_length=length,
        dropout=0.0,
        checkpoint=again,
    )
    model = LanguageModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tokens = torch.randint(0, 256, (1, length + 1), generator=torch.Generator().manual_seed(0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    cross_entropy(model(tokens[:, :-1]).logits[0], tokens[0, 1:]).backward()
    optimizer.step()
    seconds = time.perf_counter() - start
    print(seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)


def measured(layers: int, length: int, again: str) -> tuple[float, float]:
    """Seconds and bytes of one step in a fresh process."""
    command = [sys.executable, __file__, "--one", again, "--layers", str(layers), "--length", str(length)]
    done = subprocess.run(
        command, env=allocation(os.environ, fixed=True), stdout=subprocess.PIPE, text=True, check=True
    )
    seconds, peak = (float(word) for word in done.stdout.split())
    return seconds, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--one", choices=("none", "attention", "block"))
    options = parser.parse_args()
    if options.one:
        step(options.layers, options.length, options.one)
        return
    print(TARGET)
    hidden = options.length * 64 * 4
    for again in ("none", "attention", "block"):
        (few, low), (many, high) = (measured(layers, options.length, again) for layers in (2, 4))
        each = (high - low) / 2
        print(f"{again:9}: {each / 1e6:6.1f} MB a layer, {each / hidden:5.1f} hidden states; "
              f"{(many - few) / 2:.2f} s a layer", flush=True)  # fmt: skip
    seconds, peak = measured(options.layers, options.length, "block")
    print(f"block, {options.layers} layers: {peak / 1e9:.2f} GB at the peak, {seconds:.0f} s")


if __name__ == "__main__":
    main()
