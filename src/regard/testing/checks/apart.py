"""The fact that heads can be computed apart, which is what lets processes share them."""

from collections.abc import Iterator

import torch

from regard.core.attention import Attention
from regard.core.errors import RegardError
from regard.core.head_parts import head_part
from regard.testing.compare import largest_error, require
from regard.testing.inputs import LENGTH, Inputs, Subject, run
from regard.testing.registry import check
from regard.testing.sizes import growing

_CALLS = 4
"""in training, so that what is drawn or learned in calls shows"""
_TOLERANCE = 1e-10


@check(("not heads_apart", "heads_together"))
def heads_apart(subject: Subject) -> None:
    """Half of the heads with their slices of the weights compute by themselves what they do among the others."""
    for causal in subject.modes:
        for found in _differences(subject, causal):
            require(not found, f"info.heads_apart, but {found}, {causal=}")


@check(("heads_apart", "heads_apart"))
def heads_together(subject: Subject) -> None:
    """A mechanism whose heads are declared to need each other gives something else for half of them."""
    lengths = growing(LENGTH, subject.size)
    found = (found for length in lengths for causal in subject.modes for found in _differences(subject, causal, length))
    require(any(found), "info.heads_apart is False, but half of the heads give the same by themselves")


def _differences(subject: Subject, causal: bool, length: int = LENGTH) -> Iterator[str]:
    """What differs in each of some ways to compute halves of the heads; empty: nothing does.

    Five heads are half of ten: what goes by the number of a head modulo 2, 3 or 4 shows.
    """
    redrawn = subject.cls.filled(subject.options, "mechanism").get("redraw_interval") is not None
    for kv_count in (10,) if subject.info.shares_query_key else (10, 2):
        for training in (False,) if redrawn else (False, True):
            room = max(length, 32)
            built = subject.build(causal, dtype=torch.float64, count=10, kv_count=kv_count, max_length=room)
            mechanism = built.train(training)
            try:
                halves = [head_part(mechanism, number, 2) for number in range(2)]
            except RegardError as error:
                yield str(error)
                return
            x = subject.inputs(mechanism, queries=length, dtype=torch.float64)
            for _ in range(_CALLS if training else 1):
                whole = run(mechanism, x).values
                parts = [run(half, _half(mechanism, x, number)).values for number, half in enumerate(halves)]
                error = largest_error(torch.cat(parts, 1), whole)
                yield "" if error <= _TOLERANCE else f"halves differ by {error:.1e}, {kv_count=}, {training=}"


def _half(mechanism: Attention, x: Inputs, number: int) -> Inputs:
    """The inputs of half of the heads."""
    shared = {name for name, each in mechanism.info.inputs.items() if isinstance(each.heads, int)}
    halves = {name: t if name in shared else t.chunk(2, 1)[number] for name, t in x.named().items()}
    return x.replaced(**halves)
