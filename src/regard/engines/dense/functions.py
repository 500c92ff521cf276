"""A user's function of queries and keys as a score: found, made pure, and tried out."""

import copy
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from regard.core.attention import generator
from regard.core.errors import ConfigError
from regard.files import consent

PairScore = Callable[..., Tensor]
"""(queries, keys, *weights) -> logits (batch, heads, queries, keys)"""


def imported(path: str) -> PairScore:
    """The function at `module:name`.

    Raises:
        ConfigError: no such module or name, or nothing that can be called.
    """
    if consent.PATH.fullmatch(path) is None:
        raise ConfigError(f"score cannot import {path!r}, which should be module:name")
    function = consent.imported(path)
    if not callable(function) or isinstance(function, type | nn.Module):
        raise ConfigError(
            f"score: {path!r} is a {type(function).__name__}, not a function of queries and keys; "
            "a torch.nn.Module is passed itself"
        )
    return cast(PairScore, function)


def functional(module: nn.Module) -> PairScore:
    """A module as a function of queries, keys and its parameters, which keeps its structure but not its numbers.

    Raises:
        ConfigError: the module has buffers.
    """
    if next(module.buffers(), None) is not None:
        raise ConfigError(
            f"score: {type(module).__name__} has buffers, which a rule cannot be given; make them parameters with "
            "requires_grad=False"
        )
    names = [name for name, _ in module.named_parameters()]
    structure = copy.deepcopy(module).to("meta")

    def score(q: Tensor, k: Tensor, *weights: Tensor) -> Tensor:
        return functional_call(structure, dict(zip(names, weights, strict=True)), (q, k))

    return score


def require_pairwise(score: PairScore, label: str, weights: Sequence[Tensor], heads: int, dim: int) -> None:
    """Refuse a function that does not score every pair by itself.

    Args:
        score: the function.
        label: its name, for messages.
        weights: its further arguments.
        heads, dim: of the queries and keys that it will get.

    Raises:
        ConfigError: it cannot be called, returns another shape, mixes pairs, or needs gradients of other tensors than
            `weights`.
    """
    draw = generator(0, "score")
    device = weights[0].device if weights else torch.get_default_device()
    q, k = (torch.randn(2, heads, n, dim, generator=draw, device="cpu").to(device) for n in (4, 5))
    weights = [weight.detach().to(q.dtype) for weight in weights]
    try:
        whole = score(q, k, *weights)
        part = score(q[1:, :, 1:3], k[1:, :, 2:], *weights)
    except Exception as error:
        raise ConfigError(
            f"score: {label} failed on queries {tuple(q.shape)} and keys {tuple(k.shape)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    wanted = (2, heads, 4, 5)
    if not isinstance(whole, Tensor) or whole.shape != wanted or whole.dtype != q.dtype:
        got = f"{tuple(whole.shape)}, {whole.dtype}" if isinstance(whole, Tensor) else type(whole).__name__
        raise ConfigError(
            f"score: {label} must return (batch, heads, queries, keys) = {wanted} in the dtype of its inputs, "
            f"{q.dtype}; got {got}"
        )
    if whole.requires_grad:
        raise ConfigError(
            f"score: {label} uses tensors that need gradients and would get none; make it a torch.nn.Module that "
            "holds them as parameters"
        )
    if part.shape != (1, heads, 2, 3) or not torch.allclose(part, whole[1:, :, 1:3, 2:], rtol=1e-4, atol=1e-5):
        raise ConfigError(
            f"score: {label} gives a pair another logit inside a larger block: it must score every pair by itself, "
            "without randomness (normalising is the softmax's task)"
        )
