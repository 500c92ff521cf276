"""Small decoders with memories on letters, and a task whose only answer lies far behind."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from evidence.claims._letters import samples
from evidence.claims._segments import Rows, learned, read
from regard.core.attention import generator
from regard.models import LanguageModel
from regard_lab.tasks.base import IGNORE


def on_letters(
    model: LanguageModel, length: int, *, steps: int, batch: int, learning_rate: float, stage: str = "train"
) -> list[float]:
    """Trains a decoder on letters of the addresses, which its seed and the stage draw; the nats of every step."""
    draw = generator(model.config.seed, stage)

    def rows() -> Rows:
        text = samples("train", batch, length, draw)
        return text[:, :-1], text[:, 1:]

    return learned(model, rows, steps=steps, learning_rate=learning_rate)


@torch.no_grad()
def bits(model: LanguageModel, text: Tensor, *, behind: int) -> float:
    """Bits per letter of rows (rows, length + 1), without the first `behind` targets."""
    each, _ = read(model, text[:, :-1], text[:, 1:])
    return float(each[:, behind:].double().mean()) / math.log(2)


def held_out(seed: int, count: int, length: int) -> Tensor:
    """(count, length + 1) letters of held-out addresses."""
    return samples("valid", count, length, generator(seed, "valid"))


def far(count: int, length: int, places: range, *, values: int, fillers: int, draw: torch.Generator) -> Rows:
    """Rows of equally likely fillers with one value at one of the places; the last token asks for the value.

    Tokens: values, then fillers, then the one that asks. Nothing but the answer counts.
    """
    text = values + torch.randint(fillers, (count, length), generator=draw)
    value = torch.randint(values, (count, 1), generator=draw)
    text.scatter_(1, places.start + torch.randint(len(places), (count, 1), generator=draw), value)
    text[:, -1] = values + fillers
    targets = torch.full_like(text, IGNORE)
    targets[:, -1:] = value
    return text, targets


@torch.no_grad()
def share_right(model: LanguageModel, rows: Callable[[], Rows]) -> float:
    """The share of new rows whose last token is answered rightly."""
    inputs, targets = rows()
    return float((model(inputs).logits[:, -1].argmax(-1) == targets[:, -1]).double().mean())
