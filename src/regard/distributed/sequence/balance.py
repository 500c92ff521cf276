"""Which positions each process computes, and how what it has of them moves from one arrangement to another."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from regard.distributed.sequence.parts import Parts, Plan, carried

Blocks = tuple[tuple[range, ...], ...]
"""by process, the positions that it has, as ranges in ascending order"""


def contiguous(bounds: Sequence[int]) -> Blocks:
    """A part for each, as `Parts` cuts a sequence.

    Args:
        bounds: the first position of every part, and behind the last one the length of the sequence.
    """
    return tuple((range(first, stop),) for first, stop in pairwise(bounds))


def balanced(bounds: Sequence[int]) -> Blocks:
    """Halves of parts, the nth from the beginning with the nth from the end.

    Of pairs of a query and an earlier key every process has as many then, and at each hop of a ring: where each has the
    keys of another process, its second half sees their first one, and one of the two other pairs of halves is seen.

    Source: Grattafiori et al. 2024, The Llama 3 Herd of Models, arXiv:2407.21783, section 3.3.2 (context parallelism).
    """
    halves = []
    for first, stop in pairwise(bounds):
        middle = (first + stop) // 2
        halves += [range(first, middle), range(middle, stop)]
    return tuple((halves[n], halves[-1 - n]) for n in range(len(halves) // 2))


def moved(parts: Parts, before: Blocks, after: Blocks, tensors: Sequence[Tensor], axis: int) -> list[Tensor]:
    """What processes have `before`, as they have it `after`; gradients go back.

    Args:
        tensors: with this process's positions in this axis.
    """
    have, want = (_positions(blocks[parts.rank]) for blocks in (before, after))
    others = [at for at in range(parts.count) if at != parts.rank]
    give = [torch.empty(0, dtype=torch.int64)] * parts.count
    take = [have[:0]] * parts.count
    for at in others:
        give[at] = torch.isin(have, _positions(after[at])).nonzero()[:, 0]
        theirs = _positions(before[at])
        take[at] = theirs[torch.isin(theirs, want)]
    coming = carried(parts, Plan(tuple(give), tuple(map(len, take))), tensors, axis)
    kept = torch.isin(have, want).nonzero()[:, 0]
    order = torch.cat([have[kept], *take]).argsort()
    at_home = [x.index_select(axis, kept.to(x.device)) for x in tensors]
    return [
        torch.cat([x, y], axis).index_select(axis, order.to(x.device)) for x, y in zip(at_home, coming, strict=True)
    ]


def _positions(blocks: Sequence[range]) -> Tensor:
    return torch.cat([torch.arange(block.start, block.stop) for block in blocks])
