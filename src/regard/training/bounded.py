"""Networks whose sizes come from a file are no larger than what the file holds."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from regard.errors import CheckpointError

_MAKING = (torch.ops.aten.empty, torch.ops.aten.zeros, torch.ops.aten.ones, torch.ops.aten.full)
_BESIDE = 1 << 25
"""numbers that a network makes besides those that it keeps in files: tables of positions, draws on the way"""
_TENSORS = 100_000
"""that are made, so that layers without end do not take time without end either"""


class _Counting(TorchDispatchMode):
    def __init__(self, most: int, where: object) -> None:
        super().__init__()
        self.left, self.calls, self.where = most, _TENSORS, where

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if func.overloadpacket in _MAKING:
            self.calls -= 1
            self.left -= math.prod(args[0])
            if self.left < 0 or self.calls < 0:
                raise CheckpointError(
                    f"{self.where}: config.toml describes a larger model than its checkpoint holds; put the file back"
                )
        return func(*args, **(kwargs or {}))


@contextmanager
def no_larger(stored: int, where: object) -> Iterator[None]:
    """Refuse to build, inside, what is far larger than a file.

    Args:
        stored: numbers in the file.
        where: the file, for messages.

    Raises:
        CheckpointError: so much was asked for; it was not taken.
    """
    with _Counting(2 * stored + _BESIDE, where):
        yield
