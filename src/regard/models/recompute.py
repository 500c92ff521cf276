"""Activations that are computed again in the backward pass instead of being kept."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, TypeVar, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.core.attention import Attention
from regard.core.errors import UnsupportedError
from regard.core.randomness import choosing_again, noting
from regard.core.state import Summary

Result = TypeVar("Result")
Named = TypeVar("Named")


class Part(NamedTuple):
    """A module, whether it trains, and its own weights, buffers and modules by name."""

    module: nn.Module
    training: bool
    weights: dict[str, nn.Parameter | None]
    buffers: dict[str, Tensor | None]
    modules: dict[str, nn.Module | None]


def recomputed(
    wanted: bool, call: Callable[..., Result], *inputs: object, module: nn.Module, state: object = None
) -> Result:
    """call(*inputs, state=state), of which the backward pass needs the inputs alone, because it calls again: h = f(x).

    Same values and gradients: dropout draws the same elements again; mechanisms make the same choices (buckets,
    clusters, codes, lists), which are kept; those whose buffers change in training (codebooks, projections and noise
    that are drawn again) find them as the first pass left them, whatever passes came between, and leave them alone, see
    `regard.core.attention.recomputing`. So do modules whose weights, parts or mode were others in the first pass
    (`torch.func.functional_call`, a part that is exchanged, `requires_grad_(False)`, `eval()`). With a state, or
    without gradients, it is an ordinary call: a state that has been appended to is not there a second time. Compiled,
    choices are made again.

    Cost: the time of one more forward pass of `call` without its choices. Its inputs and choices are kept, and in
    training a copy of the buffers of its mechanisms.

    Args:
        wanted: False: an ordinary call.
        call: the function that is computed; a `functools.partial` where it has more arguments than `inputs`.
        inputs: of it.
        module: holds the mechanisms that it calls.
        state: the argument that it takes by this name.

    Raises:
        UnsupportedError: in the backward pass, a weight, or a tensor in `call` or a memory, that was changed in place
            since.

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
    # torch compares the versions of inputs that are tensors themselves.
    given = call.keywords if isinstance(call, partial) else {}

    def run(*inputs: object, state: object) -> Result:
        if left:
            with left[0].again(), choosing_again(choices):
                return call(*inputs, state=state)
        with noting(choices):
            result = call(*inputs, state=state)
        left.append(Left(module, given))
        return result

    return checkpoint(run, *inputs, state=None, use_reentrant=False)  # type: ignore[return-value]


@final
class Left:
    """A module as its first pass left it, so that a second one in the backward pass computes the same.

    Args:
        module: holds the mechanisms that the pass called.
        given: arguments of the pass, which the second one reads again, by name.
    """

    def __init__(self, module: nn.Module, given: Mapping[str, object]) -> None:
        self.parts = [_part(part, _buffers(part)) for part in module.modules()]
        self.weights = [(weight, weight.requires_grad) for weight in module.parameters()]
        read = [*module.named_parameters(), *_tensors("", given)]
        # A tensor that was made in inference mode has no version, and may not be changed outside of it.
        self.versions = [(name, x, x._version) for name, x in read if not x.is_inference()]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within it, the module has the weights, buffers, parts and mode of the first pass, whatever came between.

        Raises:
            UnsupportedError: a weight or an argument has been changed in place since.
        """
        for name, x, version in self.versions:
            if x._version != version:
                raise UnsupportedError(
                    f"{name} was changed in place before the backward pass, which computes activations again from it"
                )
        now = [_part(part.module, dict(part.module._buffers)) for part in self.parts]
        learns = [(weight, weight.requires_grad) for weight, _ in self.weights]
        try:
            _put(self.parts, self.weights)
            yield
        finally:
            _put(now, learns)


def _put(parts: list[Part], weights: list[tuple[nn.Parameter, bool]]) -> None:
    for part in parts:
        module = part.module
        module.training = part.training
        _replace(module._parameters, part.weights)
        _replace(module._buffers, part.buffers)
        _replace(module._modules, part.modules)
    for weight, learns in weights:
        if weight.requires_grad != learns:
            weight.requires_grad_(learns)


def _replace(names: dict[str, Named], others: dict[str, Named]) -> None:
    """In place, since others may hold the same dictionary."""
    names.clear()
    names.update(others)


def _part(module: nn.Module, buffers: dict[str, Tensor | None]) -> Part:
    return Part(module, module.training, dict(module._parameters), buffers, dict(module._modules))


def _buffers(part: nn.Module) -> dict[str, Tensor | None]:
    """Copies, where training changes them."""
    changes = part.training and isinstance(part, Attention)
    return {name: x.clone() if changes and x is not None else x for name, x in part._buffers.items()}


def _tensors(name: str, given: object) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of an argument, of several by name, or of a memory, with its name."""
    if isinstance(given, Tensor):
        yield name, given
    elif isinstance(given, Summary):
        yield from _tensors(name, given.content)
    elif isinstance(given, Mapping):
        for key, x in given.items():
            yield from _tensors(f"{name}.{key}" if name else key, x)
