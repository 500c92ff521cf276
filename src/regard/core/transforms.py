"""The guard of our operators against forward-mode differentiation.

torch drops the tangents of an operator of `torch.library`: under `torch.func.jvp` and `torch.autograd.forward_ad` its
derivative would silently be 0. torch itself refuses what else such an operator lacks: `torch.func.grad`, a second
backward pass and, for some, `torch.func.vmap`.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.autograd import forward_ad

from regard.core.errors import UnsupportedError


def forward_mode() -> bool:
    """True while a level of forward-mode differentiation is open."""
    return forward_ad._current_level >= 0


def guarded(op: Any) -> Callable[..., Any]:
    """Return a function that calls an operator of `torch.library`, and refuses arguments with a tangent.

    It takes the operator's arguments by position.
    """
    label = f"the operator {op._qualname}"

    def call(*arguments: Any) -> Any:
        refuse_tangents(label, arguments)
        return op(*arguments)

    return call


def refuse_tangents(label: str, arguments: Iterable[Any]) -> None:
    """Refuse tensors, or lists of them, that carry a tangent.

    Raises:
        UnsupportedError: there is a tangent, or may be one.
    """
    if forward_mode() and any(_has_tangent(x) for x in arguments):
        raise UnsupportedError(
            f"{label} has no forward-mode derivative (torch.func.jvp, jacfwd, torch.autograd.forward_ad): take reverse "
            'mode (torch.autograd.grad), or build the mechanism with impl="reference", its definition in plain torch'
        )


def _has_tangent(x: Any) -> bool:
    """True for a tensor with a tangent, below any wrapper of torch.func, and for a list that holds one.

    A compiler sees no tangents, so it takes every tensor to have one.
    """
    if not isinstance(x, Tensor):
        return isinstance(x, list) and any(_has_tangent(each) for each in x)
    if torch.compiler.is_compiling():
        return True
    if not is_batchedtensor(x) and forward_ad.unpack_dual(x).tangent is not None:
        return True
    within = torch.func.debug_unwrap(x, recurse=False)
    return within is not x and _has_tangent(within)
