"""A model whose processes each have a part of every sequence."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.core.errors import UnsupportedError
from regard.distributed.group import Group
from regard.distributed.sequence.attended import SharedAttention, way_of
from regard.distributed.sequence.parts import Parts
from regard.layer import AttentionLayer
from regard.models import LanguageModel, MaskedLanguageModel
from regard.models.depth.fixed import Fixed
from regard.models.embeddings import Embeddings


@contextmanager
def sequence_parallel(model: nn.Module, group: Group, size: int | None = None) -> Iterator[Parts]:
    """A block in which the processes share the positions of what `model` reads.

    Each process calls the model with its part (`parts.cut`), and gets the output of its positions, as the whole model
    gives it; `parts.whole` puts the outputs of all together. Whatever is done per token (embeddings, norms, MLPs,
    losses) stays with its process. A loss is the sum of what every process has of it, and so are gradients: add them
    up, as `regard.distributed.SequenceParts` does in training.

    Args:
        model: a language model, a masked one, or an `AttentionLayer`, with the same weights in all processes.
        group: the processes (`regard.distributed.joined`).
        size: so many of them, side by side, share a sequence; None: all.

    Yields:
        Who has which positions, and how many numbers this process has sent.

    Raises:
        UnsupportedError: the model mixes tokens elsewhere than in attention, or a mechanism has no exchange (see
            `way_of`).
        ShapeError: `size` does not divide the number of processes.

    Example:
        >>> with joined() as group, sequence_parallel(model, group) as parts:  # doctest: +SKIP
        ...     logits = model(parts.cut(tokens)).logits  # of this process's positions
        ...     every = parts.whole(logits)
    """
    require(model)
    parts = Parts(group, size)
    layers = [each for each in model.modules() if isinstance(each, AttentionLayer)]

    def begin(
        called: nn.Module, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        tokens = given[0] if given else next(iter(named.values()))
        parts.begin(tokens.shape[1])
        return given, placed(called, parts, tokens, named)

    handle = model.register_forward_pre_hook(begin, with_kwargs=True)
    try:
        for layer in layers:
            layer.exchange = SharedAttention(parts)
        yield parts
    finally:
        handle.remove()
        for layer in layers:
            layer.exchange = None
        parts.close()


def placed(model: nn.Module, parts: Parts, tokens: Tensor, named: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, with the positions of this part where the model's own would count from 0.

    Raises:
        LimitError: the whole sequence is longer than the model's table of positions.
    """
    embeddings = next((each for each in model.modules() if isinstance(each, Embeddings)), None)
    if embeddings is None or not embeddings.placed or named.get("positions") is not None:
        return named
    if embeddings.position is not None:
        embeddings.require_room(parts.total)
    return {**named, "positions": torch.arange(parts.start, parts.stop, device=tokens.device)}


def require(model: nn.Module) -> None:
    """Refuse a model that processes cannot share by positions.

    Raises:
        UnsupportedError: what stands in the way.
    """
    if not isinstance(model, LanguageModel | MaskedLanguageModel | AttentionLayer):
        raise UnsupportedError(
            f"processes share the sequences of language models, masked ones included, and of an AttentionLayer; "
            f"{type(model).__name__} reads or pools positions of other processes; train it with replicas"
        )
    named = "processes that share a sequence exchange nothing but attention, and this model has {}; leave it out, or "
    named += "train with replicas"
    if getattr(model, "convolution", None) is not None:
        raise UnsupportedError(named.format("a convolution over its tokens (short_convolution)"))
    if getattr(model, "mixture", None) is not None:
        raise UnsupportedError(named.format("neighbours that a search gives to every position"))
    depth = getattr(getattr(model, "encoder", model), "depth", None)
    if depth is not None and not isinstance(depth, Fixed):
        raise UnsupportedError(named.format(f"a depth that its tokens decide ({type(depth).__name__})"))
    config = getattr(getattr(model, "encoder", model), "config", None)
    if getattr(config, "cls_token", False):
        raise UnsupportedError(named.format("a token in front of every sequence (cls)"))
    for layer in (each for each in model.modules() if isinstance(each, AttentionLayer)):
        for there, what in (
            (layer.cross, "attention to another sequence"),
            (layer.memory is not None, "a memory"),
            (layer.cache is not None, "a cache policy"),
            (layer.projections.global_rows is not None, "rows of their own for global tokens (projections)"),
        ):
            if there:
                raise UnsupportedError(named.format(what))
        way_of(layer.attention)
