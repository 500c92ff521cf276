"""The replacement of a model's attention, built and checked before anything is changed."""

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from regard.core.attention import Attention, generator
from regard.functional import weights

_LOG = logging.getLogger("regard")


class Request(NamedTuple):
    """The mechanism that is asked for: arguments of `regard.integrations.torch.replace_attention`."""

    spec: str
    max_length: int | None
    dropout: float | None
    seed: int
    causal: bool | None = None
    pattern: str = "*"


class Replacement(NamedTuple):
    """Positions that get other attention, by their names; `carry_out` changes the model."""

    names: tuple[str, ...]
    carry_out: Callable[[], None]


@torch.no_grad()
def computes_softmax(mechanism: Attention) -> bool:
    """True if each row is softmax(q . k / sqrt(dim)) over some of its keys, by the facts and on random numbers."""
    info, heads = mechanism.info, mechanism.heads
    if info.approximates or info.inputs or info.state == "constant" or not info.affine_in_value:
        return False
    length, like = min(256, heads.max_length or 256), next(mechanism.parameters(), torch.empty(0))
    draw = generator(0, "computes_softmax")
    q, k = (2 * torch.randn(1, n, length, heads.key_dim, generator=draw) for n in (heads.count, heads.kv_heads))
    seen = weights(mechanism, q.to(like), k.to(like)).float().cpu()
    logits = q @ k.repeat_interleave(heads.group, 1).mT * heads.key_dim**-0.5
    expected = logits.masked_fill(seen <= 0, float("-inf")).softmax(-1).nan_to_num()
    return bool(((seen - expected).abs() < 0.05).all())


def note_training(mechanisms: Mapping[str, Attention], measure: Callable[[], str | None] = lambda: "") -> None:
    """Log which of these specs are not the softmax that weights were trained with; not if `measure` finds no harm."""
    others = ", ".join(spec for spec, one in mechanisms.items() if not computes_softmax(one))
    if others and (harm := measure()) is not None:
        _LOG.warning("%s is not the softmax that the weights were trained with: they need training%s", others, harm)
