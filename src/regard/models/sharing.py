"""A weight that a model holds under several names: made one between its layers, and saved once."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

from torch import Tensor, nn

from regard.core.attention import Attention
from regard.core.info import Heads
from regard.head_mix import HeadMix


def share_between_layers(mechanisms: Iterable[Attention]) -> None:
    """Give each mechanism the weights that it has in common with the first one of the same options."""
    first: list[Attention] = []
    for mechanism in mechanisms:
        like = next((other for other in first if _asked(other) == _asked(mechanism)), None)
        if like is None:
            first.append(mechanism)
        else:
            mechanism.share_weights(like)


def _asked(mechanism: Attention) -> list[tuple[str, Heads]]:
    """The mechanism with its options, however they were written, and its heads; of a mix those of every part."""
    parts = mechanism.mechanisms if isinstance(mechanism, HeadMix) else [mechanism]
    return [(part.spec_tag, replace(part.heads, seed=0)) for part in parts]


def save_once(model: nn.Module) -> None:
    """From now on the state_dict of `model` has each weight under its first name only, and loading takes it from there.

    Layers share position schemes and embedding tables; safetensors refuses two names for one memory.
    """
    model.register_state_dict_post_hook(_drop)
    model.register_load_state_dict_pre_hook(_restore)


def _aliases(model: nn.Module) -> dict[str, str]:
    """Every later name of a weight -> its first name."""
    names = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    first: dict[Tensor, str] = {}
    return {name: first[x] for name, x in names if first.setdefault(x, name) != name}


def _drop(model: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any]) -> None:
    del local_metadata
    for name in _aliases(model):
        # A model inside a model: the outer one may have dropped the name, or the inner one before it.
        state_dict.pop(prefix + name, None)


def _restore(model: nn.Module, state_dict: dict[str, Any], prefix: str, *_: object) -> None:
    for name, first in _aliases(model).items():
        if prefix + first in state_dict:
            state_dict[prefix + name] = state_dict[prefix + first]
