"""Networks whose sizes come from a file are no larger than what the file holds."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from regard.checksums import MANIFEST, entries
from regard.errors import CheckpointError, no_size
from regard.reading import content
from regard.training import shards
from regard.training.checkpoint import newest, paths

_SIZES = ("n", "m", "steps", "row", "col")
"""what the operators that make tensors of numbers in order call their sizes; the others have `size`"""
_MAKING = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        *("empty", "zeros", "ones", "full", "empty_strided", "empty_permuted"),
        *("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"),
        *("rand", "randn", "randint", "normal", "randperm"),
        *("arange", "linspace", "logspace", "eye", "tril_indices", "triu_indices"),
    )
)
_BESIDE = 1 << 25
"""numbers that a network makes besides those that it keeps in files: tables of positions, draws on the way"""
_TENSORS = 100_000
"""that are made, so that layers without end do not take time without end either"""


class _Counting(TorchDispatchMode):
    def __init__(self, most: int, problem: str) -> None:
        super().__init__()
        self.most, self.left, self.calls, self.problem = most, most, _TENSORS, problem

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        if func.overloadpacket in _MAKING:
            self.calls -= 1
            self.left -= _numbers(func, args, kwargs or {})
            if self.left < 0 or self.calls < 0:
                raise CheckpointError(self.problem)
        elif not func.is_view and _largest(func, args, kwargs or {}) > self.most:
            raise CheckpointError(self.problem)
        return func(*args, **(kwargs or {}))


def _numbers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many the call would make; none for one that takes its size from a tensor, which was counted."""
    given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
    if "size" in given:
        return math.prod(given["size"])
    if func.overloadpacket is torch.ops.aten.arange:
        return math.ceil((given["end"] - given.get("start", 0)) / given.get("step", 1))
    sizes = [given[name] for name in _SIZES if name in given]
    if func is torch.ops.aten.eye.default:
        sizes *= 2
    return math.prod(sizes) if sizes else 0


def _largest(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many numbers the largest result of a call on tensors would have, told before it is computed.

    `repeat`, `cat` and `stack`, a copy of what was expanded and everything that broadcasts make more than they are
    given, without a size among their arguments. The shapes come from the same call on tensors that hold nothing; a call
    that has none of those (it writes in place, or what it makes depends on numbers) makes no more than it is given.
    """
    if func._schema.is_mutable:
        return 0
    try:
        with torch._C._DisableTorchDispatch():
            made = func(*tree_map_only(Tensor, _empty, args), **tree_map_only(Tensor, _empty, kwargs))
    except (NotImplementedError, RuntimeError):
        return 0
    return max((each.numel() for each in tree_leaves(made) if isinstance(each, Tensor)), default=0)


def _empty(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def stored(folder: Path) -> int | None:
    """A bound on the numbers in the largest model of a folder of checkpoints, from sizes of files; None: no model.

    Raises:
        CheckpointError: there are checkpoints and none verifies.
    """
    sizes = [size for path in paths(folder) if (size := _model_bytes(path)) is not None]
    if sizes:
        return max(sizes)  # a number takes a byte at least
    found, _ = newest(folder)
    return None if found is None else sum(tensor.nbytes for tensor in found.model.values())


def _model_bytes(path: Path) -> int | None:
    """The size of a checkpoint's model, if it is the size that its manifest says: one that was cut bounds nothing."""
    try:
        expected = entries(json.loads(content(path / MANIFEST)))
        files = ["model.safetensors"] if "model.safetensors" in expected else shards.names(expected, "model")
        sizes = {name: (path / name).stat().st_size for name in files}
    except (OSError, ValueError, RecursionError):
        return None
    return sum(sizes.values()) if all(size == expected[name].size for name, size in sizes.items()) else None


@contextmanager
def no_larger(stored: int, problem: str) -> Iterator[None]:
    """Refuse to build, inside, what is far larger than a file.

    Args:
        stored: numbers in the file.
        problem: the message.

    Raises:
        CheckpointError: so much was asked for; it was not taken.
    """
    try:
        with _Counting(2 * stored + _BESIDE, problem):
            yield
    except (OverflowError, RuntimeError, TypeError) as error:
        if not no_size(error):  # which torch refuses before it can be counted
            raise
        raise CheckpointError(problem) from None
