"""Training by processes that share the positions of every example."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from regard.core.errors import ConfigError, UnsupportedError
from regard.distributed.group import Group
from regard.distributed.sequence.context import require, sequence_parallel
from regard.distributed.sequence.parts import Parts
from regard_lab.distributed.replicas import Item, Replicas
from regard_lab.training.batches import Batch
from regard_lab.training.config import TrainingConfig


class SequenceParts(Replicas):
    """Processes of which `size` side by side take the same examples, each its own positions.

    What sums over positions is added up over all of them: targets, losses, gradients. See `sequence_parallel` for what
    is exchanged.

    Args:
        group: the processes.
        size: so many share a sequence.

    Raises:
        ConfigError: `size` does not divide the number of processes.

    Source: the cut: Li et al. 2021, Sequence Parallelism: Long Sequence Training from System Perspective,
    arXiv:2105.13120, section 3; exchanges: see each.
    """

    def __init__(self, group: Group, size: int) -> None:
        super().__init__(group)
        if group.count % size:
            raise ConfigError(
                f"--parallel.sequence {size} does not divide {group.count} processes; start {size} of them or a "
                "multiple, or choose another number"
            )
        self.size, self.sets = size, group.count // size
        self.number = group.rank // size
        self.parts: Parts | None = None
        self._stack = ExitStack()

    @property
    def way(self) -> str:
        return f"{super().way} of {self.size}"

    def require(self, config: TrainingConfig) -> None:
        size = config.batch_size // config.accumulation
        if size % self.sets:
            raise ConfigError(
                f"training.batch_size={config.batch_size} in {config.accumulation} part(s) gives {size} examples to "
                f"{self.sets} sets of {self.size} processes, which does not divide; use training.batch_size="
                f"{max(size // self.sets, 1) * self.sets * config.accumulation}, or other processes"
            )
        if config.compile:
            raise UnsupportedError("training.compile does not go with --parallel.sequence; leave one of them out")
        if config.carry:
            raise UnsupportedError("training.carry keeps what each row remembers in one process; leave it out")

    def require_model(self, model: nn.Module) -> None:
        require(model)
        super().require_model(model)

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        total = len(items)
        return items[self.number * total // self.sets : (self.number + 1) * total // self.sets]

    def stopped(self, asked: bool) -> bool:
        return asked if self.parts is None else self.parts.anywhere(asked)

    @contextmanager
    def held(self, run: Path) -> Iterator[None]:
        with super().held(run):
            try:
                yield
            finally:  # the model is a whole one again
                self._stack.close()
                self.parts = None

    def cut(self, batch: Batch) -> Batch:
        if self.parts is None:
            raise UnsupportedError("a Trainer whose processes share sequences fits once; make another one to go on")
        if batch.source is not None or batch.neighbours is not None or batch.targets.shape[1] != batch.inputs.shape[1]:
            raise UnsupportedError(
                "processes share sequences with a target for each position; examples with a source, with neighbours or "
                "with one target are for replicas"
            )
        cut = self.parts.cut
        return replace(
            batch,
            inputs=cut(batch.inputs),
            targets=cut(batch.targets),
            key_mask=None if batch.key_mask is None else cut(batch.key_mask),
            marks=None if batch.marks is None else cut(batch.marks),
            contents=None if batch.contents is None else cut(batch.contents),
            nbytes=batch.nbytes if not self.parts.rank else [0] * len(batch.nbytes),
        )

    def replicated(self, model: nn.Module) -> Callable[..., Any]:
        self.parts = self._stack.enter_context(sequence_parallel(model, self.group, self.size))
        return super().replicated(model)
