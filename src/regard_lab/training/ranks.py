"""The processes that train one run: what a trainer asks of them. Here there is one, which has all of it."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard_lab.training.batches import Batch
from regard_lab.training.config import TrainingConfig
from regard_lab.training.evaluation import Scores
from regard_lab.training.interruption import locked

Item = TypeVar("Item")


class Ranks:
    """One process. `regard_lab.distributed` has several: `Replicas`, and `SequenceParts`.

    A method that says "of all" is called by every process at the same place, and gives every one the same answer.
    """

    rank = 0
    """of this process, from 0"""
    count = 1
    """of processes"""

    @property
    def main(self) -> bool:
        """Whether this is the process that writes the run."""
        return self.rank == 0

    @property
    def way(self) -> str:
        """What these processes share and how, which all of them must be told alike."""
        return type(self).__name__

    def require(self, config: TrainingConfig) -> None:
        """Refuse a configuration that these processes cannot share.

        Raises:
            ConfigError, UnsupportedError: what does not fit, and what would.
        """

    def require_model(self, model: nn.Module) -> None:
        """Refuse a model that these processes cannot share; each looks for itself.

        Raises:
            ConfigError, UnsupportedError: what does not fit, and what would.
        """

    def together(self) -> AbstractContextManager[None]:
        """A block that either succeeds in all processes or raises in all.

        Raises:
            RegardError: where the block itself raised nothing: what it raised elsewhere, with the rank in front.
        """
        return nullcontext()

    def same(self, facts: Mapping[str, str]) -> None:
        """Refuse processes that differ in what they should share.

        Raises:
            ConfigError: they do; named are the facts, and the ranks that differ from the first.
        """

    def held(self, run: Path) -> AbstractContextManager[None]:
        """The run directory, which no other training may hold meanwhile. Raises as `locked`."""
        return locked(run)

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """This process's part of a sequence: the parts of all are contiguous and follow each other."""
        return items

    def cut(self, batch: Batch) -> Batch:
        """This process's part of the positions of every example of a batch."""
        return batch

    def replicated(self, model: nn.Module) -> Callable[..., Any]:
        """What calls the model, such that the gradients of all processes are added up."""
        return model

    def adding(self, last: bool) -> AbstractContextManager[None]:
        """A forward and a backward pass, after whose `last` one in a step gradients are those of all processes."""
        del last
        return nullcontext()

    def learned(self) -> None:
        """Make what mechanisms have learned of the rows of a pass that of the rows of all (`Mechanism.row_sums`)."""

    def total(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """The sums of all."""
        return dict(numbers)

    def highest(self, number: int) -> int:
        """The largest of all."""
        return number

    def stopped(self, asked: bool) -> bool:
        """Whether a signal ends an evaluation here; of all where the processes compute it together."""
        return asked

    def merged(self, scores: Scores | None) -> Scores | None:
        """The scores of all; None if one gave up."""
        return scores

    def begin_random(self, seed: int, step: int) -> None:
        """Seed torch's generators, which dropout draws from: of each process its own, those of the first by `seed`."""
        if self.rank or step:
            digest = hashlib.sha256(repr((seed, step, self.rank, self.count)).encode()).digest()
            seed = int.from_bytes(digest[:7], "little")
        torch.manual_seed(seed)

    def random_states(self, states: dict[str, Tensor]) -> dict[str, Tensor]:
        """The random states of all, for a checkpoint."""
        return states

    def own_random_states(self, saved: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """What `random_states` of as many processes gave this one; None: there were others."""
        return None if any("@" in name for name in saved) else dict(saved)

    def meet(self) -> None:
        """Wait for all."""


ALONE = Ranks()
