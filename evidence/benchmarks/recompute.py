"""Memory of one training step of a deep `sparse_transformer`: nothing, attention or whole blocks computed again.

    python evidence/benchmarks/recompute.py                          # 100 layers of blocks at 16,384 tokens, others at
    4 layers python evidence/benchmarks/recompute.py --layers 8 --length 4096

Forward, backward and AdamW, float32, dim 64, batch 1, strided with a head for each set. Peak resident memory is above
that of the process with its model and before the step. What a layer takes is the slope between two depths, each
measured in a process of its own. Tensors above 1 MB have mappings of their own (MALLOC_MMAP_THRESHOLD_=1000000), so
that what is freed goes back to the system. Under glibc's defaults the hidden states that are kept lie between what was
freed, and no later tensor fits into the holes: figures for that are printed beside the others.
"""

import argparse
import os
import resource
import subprocess
import sys
import time

import torch
from torch.nn.functional import cross_entropy

from regard.models import LanguageModel, presets

RETURNED = {"MALLOC_MMAP_THRESHOLD_": "1000000"}
TARGET = "100 layers at 16,384 tokens, checkpoint=block: at most 1.0 GB above the model"


def step(layers: int, length: int, again: str) -> None:
    """One step; prints seconds of the processor, and bytes at the peak above those before."""
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
    start = time.process_time()
    cross_entropy(model(tokens[:, :-1]).logits[0], tokens[0, 1:]).backward()
    optimizer.step()
    seconds = time.process_time() - start
    print(seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)


def measured(layers: int, length: int, again: str, allocation: dict[str, str]) -> tuple[float, float]:
    """Seconds of the processor, and bytes, of one step in a fresh process."""
    command = [sys.executable, __file__, "--one", again, "--layers", str(layers), "--length", str(length)]
    environment = {name: value for name, value in os.environ.items() if name not in RETURNED} | allocation
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
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
    for again, allocation in (("none", RETURNED), ("attention", RETURNED), ("block", RETURNED), ("block", {})):
        (few, low), (many, high) = (measured(layers, options.length, again, allocation) for layers in (2, 6))
        bytes_each, each = (high - low) / 4, (many - few) / 4
        print(
            f"{again:9} {'returned' if allocation else 'default ':9}: {bytes_each / 1e6:6.1f} MB a layer, "
            f"{bytes_each / hidden:5.1f} hidden states, {each:.2f} s",
            flush=True,
        )
    seconds, peak = measured(options.layers, options.length, "block", RETURNED)
    print(f"block, {options.layers} layers: {peak / 1e9:.2f} GB at the peak, {seconds:.0f} s of one core")


if __name__ == "__main__":
    main()
