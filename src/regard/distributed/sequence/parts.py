"""The parts of a sequence, a contiguous one for each process, and the tensors that processes send each other."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from regard.core.dump import SLOT_AXIS
from regard.core.errors import InputError, ShapeError
from regard.distributed.group import Group


class Asked(NamedTuple):
    """What a call gives its mechanism of this process's part, as `Attention.forward` takes it."""

    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Tensor | None
    inputs: Mapping[str, Tensor]


Given = tuple[int, Tensor]
"""a process, by its place among those that share a sequence, and what it is sent or what it sends"""


class Parts:
    """Which positions of a sequence each process has, and what it sends to the others.

    Args:
        group: all processes.
        size: so many, side by side, share a sequence; None: all of them.

    Raises:
        ShapeError: `size` does not divide the number of processes.
    """

    bounds: tuple[int, ...]
    """the first position of every process, and behind the last one the length of the whole sequence"""
    numbers: int
    """floating numbers that this process has sent to others, so far"""

    def __init__(self, group: Group, size: int | None = None) -> None:
        self.count = group.count if size is None else size
        if self.count < 1 or group.count % self.count:
            raise ShapeError(f"{group.count} processes do not divide into sequences of {self.count} parts")
        self.group, self.rank, self.number = group, group.rank % self.count, group.rank // self.count
        self.bounds, self.numbers = tuple(range(self.count + 1)), 0
        # A group of its own, even of all: collectives of a model's replicas keep to theirs.
        blocks = [range(first, first + self.count) for first in range(0, group.count, self.count)]
        self._among, self._ranks = group.among(blocks), blocks[self.number]

    @property
    def start(self) -> int:
        """The first position of this process's part."""
        return self.bounds[self.rank]

    @property
    def stop(self) -> int:
        """The position behind its last one."""
        return self.bounds[self.rank + 1]

    @property
    def length(self) -> int:
        """Positions of the part."""
        return self.stop - self.start

    @property
    def total(self) -> int:
        """Positions of the whole sequence."""
        return self.bounds[-1]

    def cut(self, x: Tensor, axis: int = 1) -> Tensor:
        """This process's part of a tensor of whole sequences, which are cut as evenly as they can be.

        Raises:
            InputError: fewer positions than processes.
        """
        total = x.shape[axis]
        if total < self.count:
            raise InputError(
                f"a sequence of {total} positions has no part for each of {self.count} processes; train on longer "
                f"sequences, or with at most {max(total, 1)} of them to a sequence"
            )
        first, stop = (at * total // self.count for at in (self.rank, self.rank + 1))
        return x.narrow(axis, first, stop - first)

    def whole(self, x: Tensor, axis: int = 1) -> Tensor:
        """The whole of what every process has a part of, after a forward pass; gradients go to the parts.

        Raises:
            ShapeError: it has not this part's positions.
        """
        if x.shape[axis] != self.length:
            raise ShapeError(f"a part of {self.length} positions has {x.shape[axis]} in axis {axis}")
        moved = x.movedim(axis, 1)
        others = carried(self, self.plan([self.outside(at) for at in range(self.count)]), [moved], axis=1)[0]
        before, after = others.split([self.start, self.total - self.stop], 1)
        return torch.cat([before, moved, after], 1).movedim(1, axis)

    def begin(self, length: int) -> None:
        """Learn which positions each process has, from the lengths of the parts of all.

        Raises:
            InputError: a part without positions.
        """
        lengths = torch.zeros(self.count, dtype=torch.int64, device=self.group.device)
        lengths[self.rank] = length
        self.group.exchange(lambda: dist.all_reduce(lengths, group=self._among))
        found = [int(x) for x in lengths]
        if not all(found):
            raise InputError(
                f"the parts of a sequence have {found} positions; give each of the {self.count} processes one"
            )
        self.bounds = tuple(sum(found[:at]) for at in range(self.count + 1))

    def anywhere(self, here: bool) -> bool:
        """Whether it is so of any process that shares the sequence."""
        found = torch.tensor(int(here), device=self.group.device)
        self.group.exchange(lambda: dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self._among))
        return bool(found)

    def outside(self, rank: int) -> Tensor:
        """Every position that is in the part of another process."""
        every = torch.arange(self.total)
        return every[(every < self.bounds[rank]) | (every >= self.bounds[rank + 1])]

    def plan(self, wanted: Sequence[Tensor]) -> "Plan":
        """Who sends which slots to whom, from those that each process needs and has not, ascending."""
        give = [_inside(slots, self.start, self.stop) - self.start for slots in wanted]
        mine = wanted[self.rank]
        take = [len(_inside(mine, *self.bounds[at : at + 2])) for at in range(self.count)]
        return Plan(tuple(give), tuple(take))

    def swap(self, sent: Iterable[Given], received: Iterable[Given]) -> "Swap":
        """Begin to send tensors and to fill others; of two processes each names theirs in the same order."""
        operations: list[dist.P2POp] = []
        kept: list[Tensor] = []
        for make, given in ((dist.isend, sent), (dist.irecv, received)):
            for rank, x in given:
                if not x.numel():
                    continue
                x = x.contiguous() if make is dist.isend else x
                kept.append(x)
                operations.append(dist.P2POp(make, x, self._ranks[rank], self._among))
                if make is dist.isend and x.is_floating_point():
                    self.numbers += x.numel()
        return Swap(self.group, self.group.exchange(lambda: dist.batch_isend_irecv(operations)) if kept else [], kept)

    def close(self) -> None:
        """Part from the others; a process of which one has left already parts from it too."""
        with suppress(RuntimeError, ValueError):
            dist.destroy_process_group(self._among)

    def tell(self, rank: int, facts: object) -> None:
        """Send an object to a process, which hears it by `hear`."""
        self.group.exchange(lambda: dist.send_object_list([facts], self._ranks[rank], group=self._among))

    def hear(self, rank: int) -> Any:
        """What a process tells this one."""
        found: list[Any] = [None]
        self.group.exchange(lambda: dist.recv_object_list(found, self._ranks[rank], group=self._among))
        return found[0]


class Swap(NamedTuple):
    """Tensors on their way."""

    group: Group
    works: list[dist.Work]
    kept: list[Tensor]

    def wait(self) -> None:
        """Until all are there.

        Raises:
            ResourceError: a process has left.
        """
        for work in self.works:
            self.group.exchange(work.wait)


class Plan(NamedTuple):
    """Which of its slots a process gives to each, counted from its own first one; how many it takes from each."""

    give: tuple[Tensor, ...]
    take: tuple[int, ...]


def carried(parts: Parts, plan: Plan, tensors: Sequence[Tensor], axis: int | None = None) -> list[Tensor]:
    """The slots that this process takes, in the order of their positions; gradients go back to their owners.

    Args:
        axis: of the slots; None: as states have it.
    """
    return list(_Carried.apply(parts, plan, axis, *tensors))  # type: ignore[arg-type]


class _Carried(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Parts, plan: Plan, axis: int | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.parts, ctx.plan, ctx.like = parts, plan, [x[:0] for x in tensors]
        ctx.axes = [SLOT_AXIS[x.ndim] if axis is None else axis for x in tensors]
        ctx.shapes = [x.shape for x in tensors]
        sent = [(to, _picked(x, at, slots)) for x, at in _pairs(ctx, tensors) for to, slots in enumerate(plan.give)]
        found = [[_empty(x, at, count) for count in plan.take] for x, at in _pairs(ctx, tensors)]
        parts.swap(sent, [given for each in found for given in enumerate(each)]).wait()
        joined = tuple(torch.cat(each, at) for each, at in zip(found, ctx.axes, strict=True))
        ctx.mark_non_differentiable(*[x for x in joined if not x.is_floating_point()])
        return joined

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        parts, plan = ctx.parts, ctx.plan
        floating = [at for at, x in enumerate(ctx.like) if x.is_floating_point()]
        back: dict[int, list[Tensor]] = {}
        sent: list[Given] = []
        for at in floating:
            axis, shape, grad = ctx.axes[at], ctx.shapes[at], grads[at]
            assert grad is not None
            sent += enumerate(grad.split(list(plan.take), axis))
            blank = ctx.like[at].new_empty(shape)
            back[at] = [_empty(blank, axis, len(slots)) for slots in plan.give]
        parts.swap(sent, [given for at in floating for given in enumerate(back[at])]).wait()
        answers: list[Tensor | None] = [None] * len(ctx.like)
        for at in floating:
            total = ctx.like[at].new_zeros(ctx.shapes[at])
            for slots, grad in zip(plan.give, back[at], strict=True):
                total.index_add_(ctx.axes[at], slots.to(total.device), grad)
            answers[at] = total
        return None, None, None, *answers


def _pairs(ctx: Any, tensors: Sequence[Tensor]) -> list[tuple[Tensor, int]]:
    return list(zip(tensors, ctx.axes, strict=True))


def _inside(slots: Tensor, first: int, stop: int) -> Tensor:
    return slots[(slots >= first) & (slots < stop)]


def _picked(x: Tensor, axis: int, slots: Tensor) -> Tensor:
    return x.index_select(axis, slots.to(x.device))


def _empty(x: Tensor, axis: int, count: int) -> Tensor:
    return x.new_empty([*x.shape[:axis], count, *x.shape[axis + 1 :]])
