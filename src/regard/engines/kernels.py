"""Which engine serves a call where several can: chosen by the call itself, never by a measured time.

An engine for a device registers a kernel with the calls that it serves. Tests and measurements force an engine.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Kernel(NamedTuple):
    """An implementation of an operation.

    Attributes:
        name: by which it is forced.
        serves: True for the calls that it can compute.
        prefers: True for the calls that it is chosen for.
        run: the implementation.
    """

    name: str
    serves: Callable[..., bool]
    prefers: Callable[..., bool]
    run: Callable[..., Any]


KERNELS: dict[str, list[Kernel]] = {}
"""by operation"""
_forced = ""


def register_kernel(operation: str, kernel: Kernel) -> None:
    """Enter an implementation of an operation, to be asked after those before it."""
    KERNELS.setdefault(operation, []).append(kernel)


@contextmanager
def forced(engine: str) -> Iterator[None]:
    """Compute by this engine what it can serve, inside of the block and of this process.

    Args:
        engine: `fused`, `tiles` (also where one tile would do) or `chunks` of softmax and patterns; `flex`, `triton`;
            empty: what would be chosen.
    """
    global _forced
    before, _forced = _forced, engine
    try:
        yield
    finally:
        _forced = before


def forced_engine() -> str:
    """The name of the engine that is forced; empty: none is."""
    return _forced


def kernel(operation: str, device: str, **call: Any) -> Callable[..., Any] | None:
    """The kernel for a call; None: the engine that serves every call.

    Args:
        operation: `pattern` or `linear`.
        device: type of the device of the tensors.
        call: what `serves` and `prefers` of its kernels look at.
    """
    if device == "cpu" and not _forced:
        return None
    for each in KERNELS[operation]:
        chosen = each.name == _forced if _forced else each.prefers(device, **call)
        if chosen and each.serves(device, **call):
            return each.run
    return None
