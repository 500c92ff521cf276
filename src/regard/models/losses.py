"""The layers' auxiliary losses as losses of the model: added up by name."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from torch import Tensor

from regard.layer import AttentionLayer
from regard.models.depth import Looped

Value = TypeVar("Value")


def declared(layers: Sequence[AttentionLayer]) -> list[dict[str, float]]:
    """For every layer, the default weight of each loss: of its mechanism, and under `memory.` of its memory."""
    return [
        {
            **layer.attention.info.losses,
            **({} if layer.memory is None else {f"memory.{name}": x for name, x in layer.memory.losses.items()}),
        }
        for layer in layers
    ]


def loss_names(layers: Sequence[AttentionLayer]) -> list[dict[str, str]]:
    """For every layer, the model's name of each of its losses.

    Layers whose weights for a loss differ cannot be added up, so there the name carries the layer's number.
    """
    of_layers = declared(layers)
    weights: dict[str, set[float]] = {}
    for losses in of_layers:
        for name, weight in losses.items():
            weights.setdefault(name, set()).add(weight)
    return [
        {name: name if len(weights[name]) == 1 else f"{name}.{at}" for name in losses}
        for at, losses in enumerate(of_layers)
    ]


def loss_weights(layers: Sequence[AttentionLayer]) -> dict[str, float]:
    """The weight of each of the model's losses."""
    return {
        model_name: losses[name]
        for losses, names in zip(declared(layers), loss_names(layers), strict=True)
        for name, model_name in names.items()
    }


def of_depth(losses: Mapping[str, Value]) -> dict[str, Value]:
    """The losses of the scheme that runs the blocks, under the model's names."""
    return {f"depth.{name}": value for name, value in losses.items()}


def added_up(looped: Looped, names: Sequence[Mapping[str, str]]) -> dict[str, Tensor]:
    """The losses of all blocks and of the scheme that ran them, under the model's names."""
    total: dict[str, Tensor] = {}  # a call of dict[str, Tensor] would not compile under Python 3.11
    for of_layer, of_model in zip(looped.losses, names, strict=True):
        add_losses(total, of_layer, of_model)
    return total | of_depth(looped.own)


def add_losses(total: dict[str, Tensor], layer: Mapping[str, Tensor], names: Mapping[str, str]) -> None:
    """Add one layer's losses to the model's, under the model's names."""
    for name, loss in layer.items():
        model_name = names[name]
        total[model_name] = total[model_name] + loss if model_name in total else loss
