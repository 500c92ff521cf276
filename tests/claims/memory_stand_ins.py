"""What stands in the tests of claims on memories in the place of long trainings."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from evidence.claims._letters import LETTERS
from regard.core.attention import generator
from regard.models import LanguageModel
from regard.models.neighbours import NeighbourTokens
from regard_lab.retrieval.evaluation import Looked

ALL = slice(None)
OVER = [2.0] * 40
"""nats of a training that is over"""
RUNNING = [2.0] * 36 + [1.8] * 4
"""of one that is not"""


def by_length(slope: float, nats: list[float] = OVER) -> dict[str, Callable[..., object]]:
    """Bits of letters that change with the length of the memory."""
    return {"letters": lambda self, length, seed, steps: (3.0 + slope * length + 0.001 * seed, nats)}


def by_memory(compressive: float, nats: list[float] = OVER) -> dict[str, Callable[..., object]]:
    """Bits of letters, 3 with recent memories; what is far is answered by all but the recent one, a lag by all."""

    def letters(self: Any, memory: str, seed: int) -> tuple[float, list[float]]:
        return (3.0 if memory.startswith("recent") else compressive) + 0.001 * seed, nats

    def answered(self: Any, memory: str, seed: int) -> float:
        return 0.25 if memory == self.memories["recent"] else 1.0

    return {"letters": letters, "answered": answered, "saved": lambda self, memory, seed: 1.0}


def by_size(memory: float) -> dict[str, Callable[..., object]]:
    """Bits of text, 5 of a large model and 5.5 of a small one; a memory finds names, the large model knows facts."""

    def text(self: Any, kind: str, seed: int, steps: int) -> tuple[list[float], list[float]]:
        return [{"small": 5.5, "memory": memory, "large": 5.0}[kind] + 0.001 * seed] * 2, OVER

    return {
        "text": text,
        "found": lambda self, kind, seed: 1.0 if kind == "memory" else 1 / 16,
        "by_heart": lambda self, kind, seed: 0.9 if kind == "large" else 0.4,
    }


def by_published(tuned: float) -> dict[str, Callable[..., object]]:
    """Bits of later text, 5 without a memory; of repeated text a memory saves all."""

    def measured(self: Any, text: str, seed: int, steps: int) -> tuple[dict[str, list[float]], list[float]]:
        bits = {"without": 5.0, "with": tuned + 0.0001 * seed if text == "on" else 0.0, "other": 5.0, "whole": 4.5}
        return {name: [each] * self.segments for name, each in bits.items()}, OVER

    return {"measured": measured}


def by_age(compressed: float) -> dict[str, Callable[..., object]]:
    """Weights that fall with the age of a slot of the memory to 1, and are as large as this where it is compressed."""

    def mass(self: Any, model: LanguageModel, tokens: Tensor, rows: slice = ALL) -> Tensor:
        kept = torch.linspace(1.0, 2.0, self.length).double()
        found = torch.cat([torch.full((self.compressed,), compressed).double(), kept])
        return (found if model.config.attention == ("softmax",) else torch.ones_like(found)).view(1, 1, -1)

    return {"mass": mass, "found": lambda self, seed: 1.0}


def untrained(nats: list[float] = OVER) -> dict[str, Callable[..., object]]:
    """Trainings on letters that are none."""
    return {"on_letters": lambda *_, **__: nats}


def in_turn(*values: float) -> Callable[..., float]:
    """The next of these numbers at every call, over and over."""
    again = itertools.cycle(values)
    return lambda *_, **__: next(again)


def by_distance(*, far: float) -> Callable[[Any, Looked], NeighbourTokens]:
    """Neighbours of which one is the letter that comes and the others are any, that much further away."""

    def telling(self: Any, looked: Looked) -> NeighbourTokens:
        size = (len(looked.targets), self.k)
        at = torch.arange(size[0])[:, None] % self.k
        tokens = torch.randint(LETTERS, size, generator=generator(0, "told")).scatter(1, at, looked.targets[:, None])
        distances = torch.full(size, far).scatter(1, at, 0.0)
        return NeighbourTokens(*(x.unflatten(0, (-1, self.length)) for x in (tokens, distances)))

    return telling


OWN: dict[str, Callable[..., object]] = {
    "own": lambda *_: {"own first": 1.0, "own alone": 0.0, "own found": 0.0, "own wins": 1.0, "shuffled": 0.0}
}
"""Own entries of a datastore that behave as they must."""
ASKED: dict[str, Callable[..., object]] = {"asked": lambda *_: {"far none": 0.25, "far memory": 1.0}}
"""Far values that a memory finds."""
