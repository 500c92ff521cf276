"""Draws that are repeatable: a generator for every use, and passes that are run again."""

import hashlib

import torch


def recomputing() -> bool:
    """Whether this forward pass repeats an earlier one, inside a backward pass: checkpointing and reversible layers do.

    A mechanism that updates buffers in training then leaves them alone. torch keeps the id of the running backward pass
    per thread, -1 outside one (torch.utils.checkpoint reads it too); a compiled graph does its own bookkeeping.
    """
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1  # pyright: ignore[reportPrivateUsage]


def generator(seed: int, *parts: int | str) -> torch.Generator:
    """A generator for one use, named by `parts`, so that uses of the same seed draw independently."""
    digest = hashlib.sha256(repr((seed, *parts)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") & (2**63 - 1))
