"""Run by the tests as a program: processes that share the positions of sequences, and one GPU.

    shared_sequence.py FOLDER

NCCL takes one process of a device, so they have gloo, and what they send goes by way of the CPU; everything else is on
the device. What is found is as `tests/distributed/sequence_parts.py` writes it; job `one` is one process by itself.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from regard.distributed.group import Group
from regard.distributed.sequence import Parts
from regard.distributed.sequence.parts import Given, Swap
from regard_lab.distributed import SequenceParts
from regard_lab.training.ranks import ALONE
from tests.distributed import sequence_parts
from tests.distributed.sequence_parts import Found

SWAP, BEGIN = Parts.swap, dist.init_process_group


def swapped(parts: Parts, sent: Iterable[Given], received: Iterable[Given]) -> Swap:
    sent, received = list(sent), list(received)
    for _, x in (*sent, *received):
        assert x.is_cuda or not x.numel(), "NCCL sends what is on a device"
    there = [(rank, torch.empty_like(x, device="cpu")) for rank, x in received]
    SWAP(parts, [(rank, x.cpu()) for rank, x in sent], there).wait()
    for (_, x), (_, y) in zip(received, there, strict=True):
        x.copy_(y)
    return Swap(parts.group, [], [])


def begun(backend: str, **named: Any) -> None:
    del backend
    BEGIN("gloo", **named)


def alone(folder: Path, group: Group) -> Found:
    return sequence_parts.curves(folder, ALONE, "cuda")


def together(folder: Path, group: Group) -> Found:
    return sequence_parts.curves(folder, SequenceParts(group, group.count), "cuda")


def mechanisms(folder: Path, group: Group) -> Found:
    return sequence_parts.mechanisms(folder, group, device="cuda")


if __name__ == "__main__":
    torch.set_num_threads(1)
    Parts.swap, dist.init_process_group = swapped, begun  # type: ignore[method-assign]
    sequence_parts.JOBS.update(one=(1, (alone,)), three=(3, (together, mechanisms)))
    for job in ("one", "three"):
        sequence_parts.run(job, Path(sys.argv[1]) / job)
