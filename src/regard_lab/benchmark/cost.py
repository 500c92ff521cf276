"""Costs that are counted, not timed: floating-point operations, and numbers made, alive and in one tensor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Cost:
    """The cost of one call.

    operations: multiply-adds counted twice, of matrix products and fused attention. elements: numbers written by all
    operators together. peak: most elements alive at one time, of what was made. largest: elements of the largest tensor
    made.
    """

    operations: int
    elements: int
    peak: int
    largest: int


def counted(call: Callable[[], object]) -> Cost:
    """The cost of a call (forward, or forward and backward), the work inside custom operators included."""
    from regard.testing.counting import count

    counts = count(call)
    return Cost(counts.flops, counts.produced, counts.peak, counts.largest)


def kept_bytes(module: "nn.Module", call: Callable[[], object]) -> int:
    """Bytes of what a call keeps for its backward pass, the weights of a module apart.

    Example:
        >>> import torch
        >>> x = torch.ones(10, requires_grad=True)
        >>> kept_bytes(torch.nn.Linear(1, 1), lambda: x.exp())  # the result, which is its own derivative
        40
    """
    from torch.autograd.graph import saved_tensors_hooks

    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(x: "Tensor") -> "Tensor":
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(x)  # or the next tensor could have its address
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        call()
    return sum(kept.values())
