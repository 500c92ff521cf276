"""Draws that are repeatable: a generator for every use, and passes that are run again."""

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import nn

Choice = TypeVar("Choice")
Module = TypeVar("Module", bound=nn.Module)
Arguments = ParamSpec("Arguments")


class _Choices(threading.local):
    """The discrete choices of the mechanisms that this thread runs: those to note, and those to make again."""

    noted: list[object] | None = None
    again: Iterator[object] | None = None


CHOICES = _Choices()


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


def drawn_on_cpu(
    init: Callable[Concatenate[Module, Arguments], None],
) -> Callable[Concatenate[Module, Arguments], None]:
    """An `__init__` that makes its weights on the CPU, where generators draw the same for every device.

    They end on the default device, such as that of `with torch.device("cuda")`.
    """

    @functools.wraps(init)
    def made(module: Module, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        wanted = torch.get_default_device()
        if wanted.type == "cpu":
            return init(module, *args, **kwargs)
        with torch.device("cpu"):
            init(module, *args, **kwargs)
        module.to(wanted)

    return made


def decided(choose: Callable[[], Choice]) -> Choice:
    """The discrete choices of a call (buckets, clusters, lists): in a pass that is run again, those of the first one.

    A reversible block runs again on inputs that are rounded otherwise, a checkpoint where a device adds in any order at
    all: close choices could fall the other way.
    """
    if torch.compiler.is_compiling():
        return choose()
    if CHOICES.again is not None:
        return next(CHOICES.again)  # type: ignore[return-value]
    made = choose()
    if CHOICES.noted is not None:
        CHOICES.noted.append(made)
    return made


@contextmanager
def noting(choices: list[object]) -> Iterator[None]:
    """Within it, `decided` adds what it chooses to the list."""
    before, CHOICES.noted = CHOICES.noted, choices
    try:
        yield
    finally:
        CHOICES.noted = before


@contextmanager
def choosing_again(choices: Sequence[object]) -> Iterator[None]:
    """Within it, `decided` chooses what was noted, in the same order."""
    before, CHOICES.again = CHOICES.again, iter(choices)
    try:
        yield
    finally:
        CHOICES.again = before
