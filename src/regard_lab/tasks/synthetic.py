"""Synthetic tasks: every sequence is a pure function of (seed, split, index)."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int64

from regard.core.errors import ConfigError
from regard_lab.tasks.base import SPLITS, Example, Split, Task, checked_index
from regard_lab.tasks.config import CopyConfig, RecallConfig


class SyntheticTask(Task):
    """A task whose sequences are drawn, so that there are as many as one likes and the answer is known.

    Args:
        config: sizes.
        seed: of all sequences. Splits draw from different streams whatever the seed.
    """

    metric: ClassVar = "accuracy"

    def __init__(self, config: RecallConfig | CopyConfig, *, seed: int = 0):
        self.seed = seed
        self.vocab_size = config.vocab_size
        self.length = config.length
        self._counts = dict(zip(SPLITS, (config.num_examples, config.num_held_out, config.num_held_out), strict=True))
        self.fingerprint = hashlib.sha256(f"{config!r} seed={seed}".encode()).hexdigest()

    @abstractmethod
    def draw(self, generator: np.random.Generator) -> tuple[Int64[np.ndarray, "length"], Int64[np.ndarray, "length"]]:
        """Inputs and targets of one sequence."""

    @abstractmethod
    def solve(self, inputs: Int64[np.ndarray, "length"]) -> Int64[np.ndarray, "length"]:
        """The predictions of a program that knows the rule, for every position: right wherever a target counts.

        The positive control of a comparison: its accuracy is exactly 1.
        """

    def examples(self, split: Split) -> "Drawn":
        if split not in self._counts:
            raise ConfigError(f"task {self.name}: there is no split {split!r}; splits are {', '.join(SPLITS)}")
        return Drawn(self, split, self._counts[split])


@dataclass(frozen=True)
class Drawn:
    """The sequences of one split, each drawn when it is asked for."""

    task: SyntheticTask
    split: Split
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Example:
        index = checked_index(index, self.count)
        # A hash and not seed + index: neighbouring seeds would share sequences, and so would the splits.
        name = f"{self.task.name}/{self.task.seed}/{self.split}/{index}".encode()
        key = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")
        inputs, targets = self.task.draw(np.random.default_rng(key))
        return Example(inputs, targets, index, 0)

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(self.count))
