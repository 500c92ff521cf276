"""The common part of claims on gated units: they begin where they can learn, and end where nothing changes any more."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from evidence.claims._base import Control, Curve
from evidence.claims._letters import nats, samples
from regard.core.attention import generator
from regard.layer import OffsetScale
from regard.models import LanguageModel, ModelConfig
from regard_lab.benchmark.fitting import averages, train

OVER = Control(
    "unfinished",
    "trainings: bits of held-out text in the last tenth, change at most",
    0.0,
    tolerance=0.015,
    small=False,
)
"""the learning rate ends at 0, so that little changes in the last tenth however little was learned: it tells trainings
that were cut off, not those that are too short, which `_plateau.lasting` is for"""


@dataclass(frozen=True)
class Course:
    """What a training came to.

    Attributes:
        bits: on held-out text.
        change: of these over the last tenth of the steps.
        loss: on the way, in bits.
    """

    bits: float
    change: float
    loss: Curve


def learned(
    config: ModelConfig, new: Tensor, *, steps: int, batch: int, learning_rate: float
) -> tuple[LanguageModel, Course]:
    """A language model of the letters of the bundled addresses, trained on others than `new`, and how that went.

    Args:
        config: the model, with LETTERS tokens; its seed draws the samples too.
        new: as `samples` gives them; those of the training are as long.
        steps, batch, learning_rate: of the training.
    """
    model, draw, length = LanguageModel(config), generator(config.seed, "train"), new.shape[1] - 1
    opened(model)

    def loss() -> Tensor:
        return nats(model, samples("train", batch, length, draw)) / math.log(2)

    def held_out() -> float:
        return float(nats(model, new)) / math.log(2)

    return model, finished(model, loss, held_out, steps=steps, learning_rate=learning_rate)


def opened(model: nn.Module) -> None:
    """Let the units of a model start with gains of 1, and not near 0.

    Gains of 0.02 make weights of squared ReLU of 1e-8, and gradients no larger than what Adam adds to their size.
    Without the bias inside the square that the published unit has, a training stays where it began. bert4keras, which
    has no such bias either, starts with gains of 1.
    """
    for part in model.modules():
        if isinstance(part, OffsetScale):
            nn.init.ones_(part.gain)


def finished(
    model: nn.Module, loss: Callable[[], Tensor], held_out: Callable[[], float], *, steps: int, learning_rate: float
) -> Course:
    """Train to a learning rate of 0.

    Args:
        model: in training mode before and evaluation mode after.
        loss: of the next batch, in bits.
        held_out: bits of the model on text that it is not trained on, always the same.
        steps, learning_rate: of the training.
    """
    means: list[float] = []
    before: list[float] = []

    def value(step: int) -> Tensor:
        if step == steps - steps // 10:
            before.append(measured(model, held_out))
        value = loss()
        means.append(float(value.detach()))
        return value

    train(model.train().parameters(), value, steps=steps, learning_rate=learning_rate, last=0.0)
    bits = measured(model, held_out)
    model.eval()
    return Course(bits, abs(bits - before[0]), averages(means))


@torch.no_grad()
def measured(model: nn.Module, held_out: Callable[[], float]) -> float:
    """In evaluation mode, and back in training mode."""
    model.eval()
    bits = held_out()
    model.train()
    return bits
