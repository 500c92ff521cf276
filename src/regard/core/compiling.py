"""What a compiler or an exporter allows a call to look at."""

import math

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.core.errors import UnsupportedError


def exporting() -> bool:
    """True while torch.export traces the call.

    Read from torch's own flag: inside of torch.compile, `torch.compiler.is_exporting` of torch 2.11 returns True too.
    """
    return torch.compiler._is_exporting_flag  # pyright: ignore[reportPrivateUsage]


def require(holds: Bool[Tensor, "..."], message: str) -> None:
    """Raise `UnsupportedError` unless all of this holds; a compiled graph asserts it when it runs."""
    if torch.compiler.is_compiling():
        torch._assert_async(holds.all(), message)
    elif not bool(holds.all()):
        raise UnsupportedError(message)


def known_within(x: Tensor, low: float = -math.inf, high: float = math.inf) -> bool:
    """True if every number is known to lie in [low, high], so that a shorter way may be taken. NaN lies nowhere.

    Only eager CPU tensors are examined, where that is cheap.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    if not x.numel():
        return True
    x = x.detach() if x.requires_grad else x
    return (low == -math.inf or x.amin().item() >= low) and (high == math.inf or x.amax().item() <= high)
