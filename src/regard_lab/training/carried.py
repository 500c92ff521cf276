"""Memories that are carried from one batch to the next: which windows its rows read, and what they remember of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard.core.errors import CheckpointError, ConfigError, ShapeError
from regard.models import LanguageModel, ModelState
from regard_lab.tasks.base import Consecutive, Examples
from regard_lab.training.checkpoint import Checkpoint
from regard_lab.training.config import TrainingConfig
from regard_lab.training.data_order import permutation


class Lanes:
    """The windows that every row of a batch reads, step after step.

    The documents of an epoch, in the order of hash(seed, epoch, document), lie one behind the other and are cut into as
    many parts of equal length as a batch has rows; each row reads its part window by window. Where they do not divide,
    the last row goes on with the epoch's first windows, so that none is left out. A row begins anew with an epoch and
    with a document.

    Args:
        examples: windows of documents.
        batch_size: rows.
        seed: of the order.
    """

    def __init__(self, examples: Consecutive, batch_size: int, seed: int) -> None:
        self.count, self.batch_size, self.seed = len(examples), batch_size, seed
        self.steps = -(-self.count // batch_size)
        """of an epoch"""
        self._begins, self._spans = examples.begins, _spans(examples)
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def batch(self, step: int) -> list[int]:
        """The window of every row."""
        epoch, at = divmod(step, self.steps)
        if epoch != self._epoch:
            documents = permutation(self.seed, epoch, len(self._spans))
            windows = [np.arange(*self._spans[each]) for each in documents.tolist()]
            self._epoch, self._order = epoch, np.concatenate(windows)
        return [int(self._order[(row * self.steps + at) % self.count]) for row in range(self.batch_size)]

    def epochs(self, step: int) -> list[int]:
        """The epoch of each of them, from 0."""
        return [step // self.steps] * self.batch_size

    def fresh(self, step: int) -> list[bool]:
        """Which rows do not go on with what they read in the step before."""
        first = step % self.steps == 0
        return [first or bool(begins) for begins in np.isin(self.batch(step), self._begins)]


def _spans(examples: Consecutive) -> list[tuple[int, int]]:
    """From which window up to which each document has its own."""
    begins = examples.begins.tolist()
    return list(zip(begins, [*begins[1:], len(examples)], strict=True))


class Next(NamedTuple):
    """A batch of examples.

    ids: their numbers. fresh: which begin a document. rows: where each row's last one stood in the batch before.
    """

    ids: list[int]
    fresh: list[bool]
    rows: list[int]


def whole_documents(examples: Consecutive, batch_size: int) -> Iterator[Next]:
    """Every window once, each right after the one before it in its document, whatever the batch.

    A row takes the next document when its own is over, and leaves the batch when there is none.
    """
    waiting = _spans(examples)[::-1]
    rows = [waiting.pop() for _ in range(min(batch_size, len(waiting)))]
    places, fresh = list(range(len(rows))), [True] * len(rows)
    while rows:
        yield Next([at for at, _ in rows], fresh, places)
        later = [(at + 1, end) if at + 1 < end else waiting.pop() if waiting else None for at, end in rows]
        places = [row for row, each in enumerate(later) if each is not None]
        fresh = [later[row] != (rows[row][0] + 1, rows[row][1]) for row in places]
        rows = [each for each in later if each is not None]


@dataclass
class Carried:
    """The memories of the rows of a batch, between its steps.

    Attributes:
        model: whose they are.
        state: after the last step; None: before the first.
    """

    model: LanguageModel
    state: ModelState | None = None

    def entering(self, fresh: Sequence[bool], rows: Sequence[int] | None = None) -> ModelState:
        """What the rows remember when they read on.

        Args:
            fresh: which remember nothing.
            rows: where they stood in the batch before; None: where they stand now.
        """
        device = self.model.table.weight.device
        if self.state is None:
            return self.model.initial_state(len(fresh), segments=True)
        state = self.state if rows is None else self.state.select(torch.tensor(rows, device=device))
        return self.model.forget(state, torch.tensor(fresh, device=device)) if any(fresh) else state

    def leaving(self, state: ModelState | None) -> None:
        """Keep what they remember after a step, without its graph."""
        self.state = None if state is None else state.detach()


class Carrying:
    """A training whose rows read documents, with what each remembers.

    Args:
        model: a decoder with a memory.
        examples: windows of documents.
        config: of the training.

    Attributes:
        lanes: what the rows read.

    Raises:
        ConfigError: as `reading`, of model and examples.
    """

    def __init__(self, model: nn.Module, examples: Examples, config: TrainingConfig) -> None:
        self.model, windows = _checked(model, examples)
        self.lanes = Lanes(windows, config.batch_size, config.seed)
        self.rows = config.batch_size // config.accumulation
        self.parts = [Carried(self.model) for _ in range(config.accumulation)]
        self._dtypes = {self.model.table.weight.dtype, getattr(torch, config.dtype)}

    def entering(self, part: int, step: int) -> ModelState:
        """What the rows of a part of the batch remember when a step begins."""
        return self.parts[part].entering(self.lanes.fresh(step)[part * self.rows : (part + 1) * self.rows])

    def leaving(self, states: Sequence[ModelState | None]) -> None:
        """Keep what every part remembers after a step."""
        for part, state in zip(self.parts, states, strict=True):
            part.leaving(state)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        dumps = [{} if part.state is None else part.state.dump() for part in self.parts]
        return {f"{number}.{name}": x for number, dump in enumerate(dumps) for name, x in dump.items()}

    def restore(self, saved: Checkpoint) -> None:
        """Go on from what a checkpoint keeps.

        Raises:
            CheckpointError: it keeps none, or those of another model or batch.
        """
        device = self.model.table.weight.device
        for number, part in enumerate(self.parts):
            own = {name.partition(".")[2]: x for name, x in saved.memory.items() if name.startswith(f"{number}.")}
            empty = self.model.initial_state(self.rows, segments=True)
            try:
                part.state = empty.load({name: x.to(device) for name, x in own.items()})
            except ShapeError as error:
                raise CheckpointError(f"{saved.path}: no memories of the rows of this model's batch: {error}") from None
            if any(x.is_floating_point() and x.dtype not in self._dtypes for x in part.state.tensors().values()):
                raise CheckpointError(f"{saved.path}: memories of another dtype than this training computes in")
            if any(len(x) != self.rows for x in part.state.tensors().values()):
                raise CheckpointError(f"{saved.path}: memories of other rows than the {self.rows} of a batch")


def reading(model: nn.Module, examples: Examples, batch_size: int, limit: int) -> tuple[Carried, Iterator[Next]]:
    """What an evaluation reads that carries memories, and where it keeps them.

    Raises:
        ConfigError: a limit; a model without a memory or with absolute positions; examples that are no windows of
            documents.
    """
    if limit:
        raise ConfigError(
            f"limit={limit}: this run carries its memory through whole documents, of which so many windows from "
            "anywhere would be no measure; leave the limit out"
        )
    decoder, windows = _checked(model, examples)
    return Carried(decoder), whole_documents(windows, batch_size)


def _checked(model: nn.Module, examples: Examples) -> tuple[LanguageModel, Consecutive]:
    if getattr(examples, "streamed", False):
        raise ConfigError(
            "training.carry reads document after document, and a token store is read at random; leave it out"
        )
    if not isinstance(model, LanguageModel) or not model.config.remembers or not isinstance(examples, Consecutive):
        raise ConfigError(
            "training.carry goes on with the memory of a decoder through the documents of task text; set model.memory "
            "(recent(length=256)), or leave it out"
        )
    if model.embeddings.position is not None and model.embeddings.position.absolute:
        raise ConfigError(
            f"training.carry reads on without an end, and position {model.config.position} numbers all that a row has "
            "read; use a scheme of distances (rotary, transformer_xl, alibi)"
        )
    for layer in model.layers:
        info = layer.attention.info
        if info.anchored and layer.memory is not None and layer.memory.leads:
            raise ConfigError(
                f"training.carry empties the memory of a row where its document ends, and {info.title} counts its "
                "positions from the first slot; use a mechanism of distances, such as local or softmax"
            )
    return model, examples
