"""Data parallel training: every process has the whole model, and a share of every part of a batch."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from regard.distributed.group import Group
from regard_lab.distributed.several import SharedExamples


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


class Replicas(SharedExamples):
    """Processes with the same weights, each with a share of every part of a batch.

    Source: Li et al. 2020, PyTorch Distributed (torch.nn.parallel.DistributedDataParallel).
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self._shared: Shared | None = None
        self._unused: bool | None = None
        self._equal = False

    def replicated(self, model: nn.Module) -> Callable[..., Any]:
        self._shared, self._unused, self._equal = Shared(model), None, False
        self.count_calls(model)
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
