"""Costs that are counted, not timed: floating-point operations, elements made, and the largest tensor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Cost:
    """What one call did.

    operations: multiply-adds counted twice, matrix products only. elements: numbers written by all operators together.
    largest: elements of the largest tensor made.
    """

    operations: int
    elements: int
    largest: int


class _Made(TorchDispatchMode):
    """Counts what every operator makes. Views are not made: they share the storage of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        made = func(*args, **(kwargs or {}))
        for x in tree_leaves(made):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in given:
                self.elements += x.numel()
                self.largest = max(self.largest, x.numel())
        return made


def counted(call: Callable[[], object]) -> Cost:
    """The cost of a call (forward, or forward and backward), the work inside custom operators included."""
    with FlopCounterMode(display=False) as operations:
        call()
    with _Made() as made:
        call()
    return Cost(operations.get_total_flops(), made.elements, made.largest)
