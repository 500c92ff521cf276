"""Activations that are computed again in the backward pass instead of being kept."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.core import Attention
from regard.randomness import choosing_again, noting

Result = TypeVar("Result")
Buffers = tuple[Attention, dict[str, Tensor]]
"""a mechanism, and its buffers by name"""


def recomputed(
    wanted: bool, call: Callable[..., Result], *inputs: object, module: nn.Module, state: object = None
) -> Result:
    """call(*inputs, state=state), of which the backward pass needs the inputs alone, because it calls again: h = f(x).

    Same values and gradients: dropout draws the same elements again; mechanisms make the same choices (buckets,
    clusters, codes, lists), which are kept; those whose buffers change in training (codebooks, projections and noise
    that are drawn again) find them as the first pass left them, whatever passes came between, and leave them alone, see
    `regard.core.recomputing`. With a state, or without gradients, it is an ordinary call: a state that has been
    appended to is not there a second time. Compiled, choices are made again.

    Cost: the time of one more forward pass of `call` without its choices. Its inputs and choices are kept, and in
    training a copy of the buffers of its mechanisms.

    Args:
        wanted: False: an ordinary call.
        call: the function that is computed.
        inputs: of it.
        module: holds the mechanisms that it calls.
        state: the argument that it takes by this name.

    Example:
        >>> x = torch.randn(3, requires_grad=True)
        >>> recomputed(True, lambda x, state: x.exp().sum(), x, module=torch.nn.Identity()).backward()
        >>> torch.equal(x.grad, x.exp())
        True

    Source: Chen et al. 2016, Training deep nets with sublinear memory cost, section 4; for blocks of attention: Child
    et al. 2019, section 5.4.
    """
    if not wanted or state is not None or not torch.is_grad_enabled():
        return call(*inputs, state=state)
    if torch.compiler.is_compiling():
        return checkpoint(call, *inputs, state=None, use_reentrant=False)  # type: ignore[return-value]
    left: list[Buffers] = []
    choices: list[object] | None = None

    def run(*inputs: object, state: object) -> Result:
        nonlocal choices
        if choices is not None:
            with as_left(left), choosing_again(choices):
                return call(*inputs, state=state)
        choices = []
        with noting(choices):
            result = call(*inputs, state=state)
        if module.training:
            left.extend(buffers_of(module))
        return result

    return checkpoint(run, *inputs, state=None, use_reentrant=False)  # type: ignore[return-value]


def buffers_of(module: nn.Module) -> list[Buffers]:
    """Copies of the buffers of every mechanism in a module."""
    return [
        (part, {name: x.clone() for name, x in part.named_buffers(recurse=False)})
        for part in module.modules()
        if isinstance(part, Attention)
    ]


@contextmanager
def as_left(buffers: list[Buffers]) -> Iterator[None]:
    """Within it, the buffers of these mechanisms are the given ones."""
    now = [(part, dict(part.named_buffers(recurse=False))) for part, _ in buffers]
    try:
        for part, kept in buffers:
            part._buffers.update(kept)
        yield
    finally:
        for part, kept in now:
            part._buffers.update(kept)
