"""The layers' auxiliary losses as losses of the model: added up by name."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from regard.core import Attention


def loss_names(mechanisms: Sequence[Attention]) -> list[dict[str, str]]:
    """For every layer, the model's name of each of its losses.

    Layers whose weights for a loss differ cannot be added up, so there the name carries the layer's number.
    """
    declared = [mechanism.info.losses for mechanism in mechanisms]
    weights: dict[str, set[float]] = {}
    for losses in declared:
        for name, weight in losses.items():
            weights.setdefault(name, set()).add(weight)
    return [
        {name: name if len(weights[name]) == 1 else f"{name}.{at}" for name in losses}
        for at, losses in enumerate(declared)
    ]


def loss_weights(mechanisms: Sequence[Attention]) -> dict[str, float]:
    """The weight of each of the model's losses."""
    return {
        own: mechanism.info.losses[name]
        for mechanism, names in zip(mechanisms, loss_names(mechanisms), strict=True)
        for name, own in names.items()
    }


def add_losses(total: dict[str, Tensor], layer: Mapping[str, Tensor], names: Mapping[str, str]) -> None:
    """Add one layer's losses to the model's, under the model's names."""
    for name, loss in layer.items():
        own = names[name]
        total[own] = total[own] + loss if own in total else loss
