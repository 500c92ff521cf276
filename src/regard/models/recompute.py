"""Activations that are computed again in the backward pass instead of being kept."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.core import Attention
from regard.errors import UnsupportedError
from regard.randomness import choosing_again, noting

Result = TypeVar("Result")
Part = tuple[nn.Module, bool, dict[str, nn.Parameter | None], dict[str, Tensor | None]]
"""a module, whether it trains, and its own weights and buffers by name"""


def recomputed(
    wanted: bool, call: Callable[..., Result], *inputs: object, module: nn.Module, state: object = None
) -> Result:
    """call(*inputs, state=state), of which the backward pass needs the inputs alone, because it calls again: h = f(x).

    Same values and gradients: dropout draws the same elements again; mechanisms make the same choices (buckets,
    clusters, codes, lists), which are kept; those whose buffers change in training (codebooks, projections and noise
    that are drawn again) find them as the first pass left them, whatever passes came between, and leave them alone, see
    `regard.core.recomputing`. So do modules whose weights or mode were others in the first pass
    (`torch.func.functional_call`, `eval()`). With a state, or without gradients, it is an ordinary call: a state that
    has been appended to is not there a second time. Compiled, choices are made again.

    Cost: the time of one more forward pass of `call` without its choices. Its inputs and choices are kept, and in
    training a copy of the buffers of its mechanisms.

    Args:
        wanted: False: an ordinary call.
        call: the function that is computed.
        inputs: of it.
        module: holds the mechanisms that it calls.
        state: the argument that it takes by this name.

    Raises:
        UnsupportedError: in the backward pass, a weight that was changed in place since.

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
    left: list[Left] = []
    choices: list[object] = []

    def run(*inputs: object, state: object) -> Result:
        if left:
            with left[0].again(), choosing_again(choices):
                return call(*inputs, state=state)
        with noting(choices):
            result = call(*inputs, state=state)
        left.append(Left(module))
        return result

    return checkpoint(run, *inputs, state=None, use_reentrant=False)  # type: ignore[return-value]


@final
class Left:
    """A module as its first pass left it, so that a second one in the backward pass computes the same.

    Args:
        module: holds the mechanisms that the pass called.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parts = [(part, part.training, dict(part._parameters), _buffers(part)) for part in module.modules()]
        self.versions = [(name, weight, weight._version) for name, weight in module.named_parameters()]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within it, the module has the weights, buffers and mode of the first pass, whatever came between.

        Raises:
            UnsupportedError: a weight has been changed in place since.
        """
        for name, weight, version in self.versions:
            if weight._version != version:
                raise UnsupportedError(
                    f"{name} was changed in place before the backward pass, which computes activations again from it"
                )
        now = [(part, part.training, dict(part._parameters), dict(part._buffers)) for part, *_ in self.parts]
        try:
            _put(self.parts)
            yield
        finally:
            _put(now)


def _put(parts: list[Part]) -> None:
    for part, training, weights, buffers in parts:
        part.training = training
        part._parameters.update(weights)
        part._buffers.update(buffers)


def _buffers(part: nn.Module) -> dict[str, Tensor | None]:
    """Copies, where training changes them."""
    changes = part.training and isinstance(part, Attention)
    return {name: x.clone() if changes and x is not None else x for name, x in part._buffers.items()}
