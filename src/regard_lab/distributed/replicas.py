"""Data parallel training: every process has the whole model, and a share of every part of a batch."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from regard.core.attention import Attention, recomputing
from regard.core.errors import ConfigError, UnsupportedError
from regard.core.options import registered_name
from regard.distributed.group import Group, error_of
from regard_lab.training.config import TrainingConfig
from regard_lab.training.evaluation import Scores
from regard_lab.training.ranks import Ranks

Item = TypeVar("Item")


class Shared:
    """Calls the model, by itself or as one of several replicas, and has its attributes."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.replica = model, None

    model: nn.Module
    replica: DistributedDataParallel | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self.model if self.replica is None else self.replica)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def replicate(self, *, unused: bool) -> None:
        """Exchange gradients during the backward pass from now on.

        Args:
            unused: some parameters have no gradient.
        """
        kept = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
        buffers: dict[str, Any] = {"forward_sync_buffers" if kept else "broadcast_buffers": False}
        self.replica = DistributedDataParallel(self.model, find_unused_parameters=unused, **buffers)
        self.replica.register_comm_hook(None, _summed)


def _summed(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Gradients added up: the objective is already divided by what all processes have."""
    del state
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


class Replicas(Ranks):
    """Processes with the same weights, each with a share of every part of a batch; gradients are added up.

    A step is that of one process up to rounding: the same examples and the same objective. Dropout draws other elements
    in each process. See `Ranks` for what each method promises.

    Source: Li et al. 2020, PyTorch Distributed (torch.nn.parallel.DistributedDataParallel).
    """

    def __init__(self, group: Group) -> None:
        self.group, self.rank, self.count = group, group.rank, group.count
        self._calls: dict[Attention, int] = {}
        self._shared: Shared | None = None
        self._unused: bool | None = None
        self._equal = False

    @contextmanager
    def together(self) -> Iterator[None]:
        error: Exception | None = None
        try:
            yield
        except Exception as raised:  # of any kind: the others would wait for this process
            error = raised
        said = None if error is None else (type(error).__name__, str(error))
        everyone = self.group.gathered(("block", said))
        if error is not None:
            raise error
        self._agree(everyone, "block")

    def _agree(self, everyone: Sequence[tuple[str, Any]], where: str) -> None:
        """Raise what processes say that failed in a block; refuse those that are at another place than this one.

        Raises:
            RegardError: of another process. ConfigError: one does other work.
        """
        for rank, (place, words) in enumerate(everyone):
            if place == "block" and words is not None:
                raise error_of(words[0], f"process {rank} of {self.count}: {words[1]}")
        for rank, (place, _) in enumerate(everyone):
            if place != where:
                raise ConfigError(
                    f"process {rank} of {self.count} is elsewhere in its work than process {self.rank}; start all of "
                    "them with the same command, data and versions"
                )

    def same(self, facts: Mapping[str, str]) -> None:
        told = self.group.gathered(("facts", dict(facts)))
        self._agree(told, "facts")
        everyone = [found for _, found in told]
        for name in facts:
            others = [rank for rank, found in enumerate(everyone) if found.get(name) != everyone[0].get(name)]
            if others:
                raise ConfigError(
                    f"processes {', '.join(map(str, others))} of {self.count} have another {name} than process 0 "
                    f"({everyone[others[0]].get(name)!r:.200}, not {everyone[0].get(name)!r:.200}); start all of them "
                    "with the same command, data and versions"
                )

    @contextmanager
    def held(self, run: Path) -> Iterator[None]:
        with ExitStack() as stack:
            with self.together():
                if self.main:
                    stack.enter_context(super().held(run))
            yield

    def highest(self, number: int) -> int:
        return int(self.group.reduced([number], dist.ReduceOp.MAX)[0])

    def random_states(self, states: dict[str, Tensor]) -> dict[str, Tensor]:
        everyone = self.group.gathered(states)
        return {_of(name, rank): state for rank, own in enumerate(everyone) for name, state in own.items()}

    def own_random_states(self, saved: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        numbers = {name.partition("@")[2] or "0" for name in saved}
        if len(numbers) != self.count:
            return None
        own = str(self.rank)
        return {name.partition("@")[0]: x for name, x in saved.items() if (name.partition("@")[2] or "0") == own}

    def meet(self) -> None:
        self.group.gathered(None)

    def require(self, config: TrainingConfig) -> None:
        size = config.batch_size // config.accumulation
        if size % self.count:
            fits = sorted({max(size // self.count, 1) * self.count, (size // self.count + 1) * self.count})
            raise ConfigError(
                f"training.batch_size={config.batch_size} in {config.accumulation} part(s) gives {size} examples to "
                f"{self.count} processes, which does not divide; use training.batch_size="
                f"{' or '.join(str(each * config.accumulation) for each in fits)}, or other processes"
            )
        if config.carry and self.count > 1:
            raise UnsupportedError(
                "training.carry keeps what each row remembers in one process; leave it out, or train with one process"
            )

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        total = len(items)
        return items[self.rank * total // self.count : (self.rank + 1) * total // self.count]

    def _count_calls(self, model: nn.Module) -> None:
        """Note from now on which mechanisms learn from calls (`Mechanism.row_sums`), for `learned`."""
        self._calls = {each: 0 for each in model.modules() if isinstance(each, Attention) and each.row_sums}
        for mechanism in self._calls:
            mechanism.register_forward_pre_hook(self._count)

    def _count(self, mechanism: nn.Module, given: object) -> None:
        """Note a call from which a mechanism learns; a repetition for the backward pass is none."""
        del given
        if mechanism.training and not recomputing():
            self._calls[mechanism] += 1  # type: ignore[index]

    def learned(self) -> None:
        for mechanism, calls in self._calls.items():
            if calls > 1:
                raise UnsupportedError(
                    f"{registered_name(type(mechanism))} learns from every call, and a pass of this model calls it "
                    f"{calls} times, between which the processes do not meet: train it with one process, or choose a "
                    "depth that runs each block once"
                )
            for name in mechanism.row_sums if calls else ():
                self.group.summed(getattr(mechanism, name))
            self._calls[mechanism] = 0

    def total(self, numbers: Mapping[str, float]) -> dict[str, float]:
        return dict(zip(numbers, self.group.reduced(list(numbers.values()), dist.ReduceOp.SUM), strict=True))

    def merged(self, scores: Scores | None) -> Scores | None:
        return merged_scores(self.group.gathered(scores))

    def replicated(self, model: nn.Module) -> Callable[..., Any]:
        self._shared, self._unused, self._equal = Shared(model), None, False
        self._count_calls(model)
        return self._shared

    @contextmanager
    def adding(self, last: bool) -> Iterator[None]:
        assert self._shared is not None
        if not self._equal:
            self._copy(self._shared.model)
        if self._unused is not None and self._shared.replica is None:  # not before all had the same buffers again
            self._shared.replicate(unused=self._unused)
        replica = self._shared.replica
        with nullcontext() if last or replica is None else replica.no_sync(), self.group.watching():
            yield
            if last and replica is None:
                self._unused = self._added(self._shared.model)

    def _copy(self, model: nn.Module) -> None:
        """Give all the weights and buffers of the first process, before the first step."""
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                self.group.exchange(functools.partial(dist.broadcast, tensor, 0))
        self._equal = True

    def _added(self, model: nn.Module) -> bool:
        """Add up the gradients of all, after the first step; whether a process has none for some parameter.

        Only this step shows which parameters have gradients, which the later ones must know beforehand.
        """
        parameters = [x for x in model.parameters() if x.requires_grad]
        there = torch.tensor([float(x.grad is not None) for x in parameters], device=self.group.device)
        anywhere = there.clone()
        dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
        dist.all_reduce(there, op=dist.ReduceOp.MIN)
        for parameter, needed in zip(parameters, anywhere.tolist(), strict=True):
            if needed:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                dist.all_reduce(parameter.grad)
        return not bool(there.all())


def _of(name: str, rank: int) -> str:
    """The name of a random state in a checkpoint; those of the first process have their own."""
    return f"{name}@{rank}" if rank else name


def merged_scores(everyone: Iterable[Scores | None]) -> Scores | None:
    """The scores of all; None if one gave up."""
    whole = Scores()
    for each in everyone:
        if each is None:
            return None
        whole.include(each)
    return whole
