"""Processes that share a GPU: what they exchange goes by way of the CPU, since NCCL takes one process of a device."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future

BEGIN = dist.init_process_group


class Staged(dist.ProcessGroup):
    """What NCCL is asked for, by gloo."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self.gloo, self.count = dist.ProcessGroupGloo(store, rank, size, timeout), size

    def getBackendName(self) -> str:
        return "staged"

    @property
    def pg_name(self) -> str:
        return dist.distributed_c10d._world.pg_names[self]

    @property
    def group_name(self) -> str:
        return self.pg_name

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        average = opts.reduceOp == dist.ReduceOp.AVG
        if average:
            opts.reduceOp = dist.ReduceOp.SUM
        for x in tensors:
            y = x.detach().cpu()
            self.gloo.allreduce([y], opts).wait()
            x.detach().copy_(y / self.count if average else y)
        return done(tensors)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Sequence[Tensor], opts: Any = None) -> Any:
        for x in tensors:
            y = x.detach().cpu()
            self.gloo.broadcast([y], opts).wait()
            x.detach().copy_(y)
        return done(tensors)

    def allgather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None) -> Any:
        del opts
        for each, x in zip(outputs, inputs, strict=True):
            there = [torch.empty_like(y, device="cpu") for y in each]
            self.gloo.allgather([there], [x.detach().cpu()]).wait()
            copy([there], [each])
        return done(outputs)

    def all_gather_single(self, output: Tensor, x: Tensor, opts: Any = None) -> Any:
        return self.allgather([list(output.detach().view(-1).chunk(self.count))], [x.detach().view(-1)], opts)

    def all_gather_single_coalesced(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None) -> Any:
        for output, x in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, x, opts)
        return done(outputs)

    def reduce_scatter_single(self, output: Tensor, x: Tensor, opts: Any = None) -> Any:
        total = x.detach().clone()
        reduction = dist.AllreduceOptions()
        reduction.reduceOp = opts.reduceOp
        self.allreduce([total], reduction)
        output.detach().view(-1).copy_(total.view(-1).chunk(self.count)[self.rank()])
        return done([output])

    def gather(self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Any = None) -> Any:
        there = [[torch.empty_like(y, device="cpu") for y in each] for each in outputs]
        self.gloo.gather(there, [x.detach().cpu() for x in inputs], opts).wait()
        copy(there, outputs)
        return done(outputs)

    def scatter(self, outputs: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]], opts: Any = None) -> Any:
        there = [torch.empty_like(y, device="cpu") for y in outputs]
        self.gloo.scatter(there, [[x.detach().cpu() for x in each] for each in inputs], opts).wait()
        copy([there], [outputs])
        return done(outputs)

    def barrier(self, opts: Any = None) -> Any:
        del opts
        self.gloo.barrier().wait()
        return done([])

    # as torch before 2.13 calls them
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single


def copy(found: Sequence[Sequence[Tensor]], places: Sequence[Sequence[Tensor]]) -> None:
    for some, there in zip(found, places, strict=True):
        for x, y in zip(some, there, strict=True):
            y.detach().copy_(x)


def done(answer: object) -> Any:
    """A finished work."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(answer)
    return _create_work_from_future(future)


def begin(backend: str, **named: Any) -> None:
    """`init_process_group` of processes that share the device."""
    del backend
    BEGIN("staged", **named)


def share_the_device() -> None:
    """Every group of this process is such a one from now on."""
    dist.Backend.register_backend("staged", Staged, devices=["cpu", "cuda"])
    dist.init_process_group = begin
