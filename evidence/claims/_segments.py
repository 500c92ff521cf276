"""Small decoders that read rows segment by segment, with what their memories hold of the segments before."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from evidence.claims._training import own_losses, trained
from regard.models import LanguageModel
from regard_lab.tasks.base import IGNORE

Rows = tuple[Int[Tensor, "batch length"], Int[Tensor, "batch length"]]
"""tokens, and what each should predict, IGNORE where nothing counts"""


def learned(model: LanguageModel, rows: Callable[[], Rows], *, steps: int, learning_rate: float) -> list[float]:
    """Trains a decoder on fresh rows, each in segments of `max_length`; the nats of every step."""

    def loss() -> tuple[Tensor, Tensor]:
        inputs, targets = rows()
        each, own = read(model, inputs, targets)
        return each.sum() / (targets != IGNORE).sum(), own

    return trained(model, loss, steps=steps, learning_rate=learning_rate)


def read(
    model: LanguageModel, inputs: Int[Tensor, "batch length"], targets: Int[Tensor, "batch length"]
) -> tuple[Float[Tensor, "batch length"], Tensor]:
    """The nats of every target, 0 where nothing counts, and in training the weighted losses of the memories.

    A decoder without a memory reads each segment by itself.
    """
    parts = inputs if model.config.remembers else inputs.reshape(-1, model.config.max_length)
    got = model(parts)
    nats = cross_entropy(got.logits.reshape(*inputs.shape, -1).mT, targets, reduction="none", ignore_index=IGNORE)
    return nats, own_losses(model, got.losses)


def lagged(count: int, length: int, lag: int, symbols: int, draw: torch.Generator) -> Rows:
    """Rows of equally likely symbols that repeat themselves after `lag` of them: whoever reaches back so far knows all.

    What no copy came before does not count.
    """
    first = torch.randint(symbols, (count, lag), generator=draw)
    text = first.repeat(1, length // lag + 2)[:, : length + 1]
    targets = text[:, 1:].clone()
    targets[:, : lag - 1] = IGNORE
    return text[:, :-1], targets
