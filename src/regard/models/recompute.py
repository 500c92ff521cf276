"""Activations that are computed again in the backward pass instead of being kept."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch.utils.checkpoint import checkpoint

Result = TypeVar("Result")


def recomputed(wanted: bool, call: Callable[..., Result], *inputs: object, state: object = None) -> Result:
    """call(*inputs, state=state), of which the backward pass needs the inputs alone, because it calls again: h = f(x).

    Same values and gradients: dropout draws the same elements again, and what learns in training (codebooks, redrawn
    projections) leaves its buffers alone when it runs again, see `regard.core.recomputing`. With a state, or without
    gradients, it is an ordinary call: a state that has been appended to is not there a second time.

    Cost: the time of one more forward pass of `call`. Its inputs are kept.

    Args:
        wanted: False: an ordinary call.
        call: the function that is computed.
        inputs: of it.
        state: the argument that it takes by this name.

    Example:
        >>> x = torch.randn(3, requires_grad=True)
        >>> recomputed(True, lambda x, state: x.exp().sum(), x).backward()
        >>> torch.equal(x.grad, x.exp())
        True

    Source: Chen et al. 2016, Training deep nets with sublinear memory cost, section 4; for blocks of attention: Child
    et al. 2019, section 5.4.
    """
    if not wanted or state is not None or not torch.is_grad_enabled():
        return call(*inputs, state=state)
    return checkpoint(call, *inputs, state=None, use_reentrant=False)  # type: ignore[return-value]
