"""Some of the heads of a mechanism, with their slices of its weights."""

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from regard.core.attention import Attention
from regard.core.errors import ConfigError, UnsupportedError

Mechanism = TypeVar("Mechanism", bound=Attention)


def head_part(mechanism: Mechanism, number: int, parts: int) -> Mechanism:
    """A run of heads of a mechanism, which computes what the mechanism computes for them if its `info.heads_apart`.

    A weight or buffer whose size depends on the number of heads is sliced where it does; others are copied whole.

    Args:
        mechanism: with all heads.
        number: of the run, from 0.
        parts: how many runs of one size there are.

    Raises:
        ConfigError: heads that do not divide. UnsupportedError: a weight that has no slice for some heads.
    """
    heads = mechanism.heads
    if heads.count % parts or heads.kv_heads % parts:
        raise ConfigError(
            f"{heads.count} heads with {heads.kv_heads} of keys cannot be shared by {parts} processes: choose a number "
            "that divides both"
        )
    kv_count = None if heads.kv_count is None else heads.kv_count // parts
    part = type(mechanism)(replace(heads, count=heads.count // parts, kv_count=kv_count), **mechanism.options)
    cuts = cut_at(mechanism, part)
    ours = dict(part.named_parameters()) | dict(part.named_buffers())
    for name, whole in (*mechanism.named_parameters(), *mechanism.named_buffers()):
        cut = piece(whole.detach(), cuts[name], number, parts)
        ours[name].data = cut.clone(memory_format=torch.contiguous_format)
        ours[name].requires_grad_(whole.requires_grad)
    return part.train(mechanism.training)


def cut_at(mechanism: Attention, part: Attention) -> dict[str, int | None]:
    """The dimension in which each weight and buffer of a part is a slice; None: it is whole.

    Raises:
        UnsupportedError: one that has no slice for some heads.
    """
    theirs = dict(part.named_parameters()) | dict(part.named_buffers())
    parts = mechanism.heads.count // part.heads.count
    cuts: dict[str, int | None] = {}
    for name, whole in (*mechanism.named_parameters(), *mechanism.named_buffers()):
        shape = theirs[name].shape if name in theirs else ()
        other = [at for at, (size, less) in enumerate(zip(whole.shape, shape, strict=False)) if size != less]
        if len(shape) != whole.ndim or len(other) > 1 or any(whole.shape[at] != parts * shape[at] for at in other):
            raise UnsupportedError(
                f"{mechanism.info.title}: {name} is {tuple(whole.shape)} for all heads and {tuple(shape)} for one of "
                f"{parts} parts of them, which is no slice"
            )
        cuts[name] = other[0] if other else None
    return cuts


def piece(x: Tensor, cut: int | None, number: int, parts: int) -> Tensor:
    """A part of a tensor, cut in a dimension; None: all of it."""
    return x if cut is None else x.chunk(parts, cut)[number]
