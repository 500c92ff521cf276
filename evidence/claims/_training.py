"""Small decoders with the sizes of a claim, and their trainings."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from evidence.claims._base import Claim
from regard.models import LanguageModel, ModelConfig
from regard_lab.benchmark.fitting import train

SIZES = ("dim", "heads", "layers")
"""settings of a claim that are those of its decoders"""


def decoder(
    claim: Claim, vocab_size: int, seed: int, *, attention: str | tuple[str, ...] = "softmax", **given: Any
) -> LanguageModel:
    """A decoder in training mode, with the sizes of a claim that has such settings, unless they are given.

    Args:
        claim: with its settings.
        vocab_size: tokens.
        seed: of the weights.
        attention: of every layer, or of one after the other.
        given: other fields of the configuration.
    """
    sizes = {name: getattr(claim, name) for name in SIZES if hasattr(claim, name)}
    layers = (attention,) if isinstance(attention, str) else attention
    return LanguageModel(ModelConfig(vocab_size=vocab_size, seed=seed, attention=layers, **(sizes | given)))


def trained(
    model: nn.Module, loss: Callable[[], Tensor | tuple[Tensor, Tensor]], *, steps: int, **schedule: float
) -> list[float]:
    """Train a model on a fresh batch in every step; the losses of the steps. It ends in evaluation mode.

    Args:
        model: of which everything is trained that requires a gradient.
        loss: draws a batch and gives its loss; and the model's own weighted losses, which are trained and not recorded.
        steps: how many.
        schedule: other arguments of `regard_lab.benchmark.fitting.train`.
    """
    losses: list[float] = []

    def value(step: int) -> Tensor:
        del step
        found = loss()
        main, own = found if isinstance(found, tuple) else (found, 0.0)
        losses.append(float(main.detach()))
        return main + own

    train(model.train().parameters(), value, steps=steps, **schedule)
    model.eval()
    return losses


def own_losses(model: LanguageModel, losses: Mapping[str, Tensor]) -> Tensor:
    """The weighted sum of a decoder's own losses, such as those of its exits."""
    return sum((model.loss_weights[name] * loss for name, loss in losses.items()), torch.zeros(()))
