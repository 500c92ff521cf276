"""Random key blocks for every query block."""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from regard.patterns.intervals import Possibility, Span


def visible(blocks: int, first: int, last: int) -> Int[Tensor, "blocks seen"]:
    """The key blocks that every query block sees without chance; -1 for none."""
    block = torch.arange(blocks)[:, None]
    always = [*range(min(first, blocks)), *([last] if last >= 0 else [])]
    chosen = torch.cat([block - 1, block, block + 1, torch.tensor(always).long().expand(blocks, -1)], 1)
    return chosen.masked_fill(chosen >= blocks, -1)


def draw(
    seen: Int[Tensor, "blocks seen"], count: int, *, causal: bool, source: torch.Generator
) -> Int[Tensor, "blocks picks"]:
    """Key blocks for every query block, none twice and none seen; causal: earlier ones; -1 where there are no more.

    The picks of a query block depend on the numbers drawn before it, so causal ones stay when blocks are added.
    """
    blocks, beyond = len(seen), len(seen) + 1
    last = torch.arange(blocks) if causal else torch.full((blocks,), blocks)
    chance = torch.rand(blocks, count, generator=source, dtype=torch.float64)
    taken = torch.where((seen < 0) | (seen >= last[:, None]), beyond, seen).sort().values
    taken = taken.masked_fill(F.pad(taken.diff() == 0, (1, 0)), beyond).sort().values
    picks = []
    for number in chance.unbind(1):
        room = last - (taken < beyond).sum(1)
        pick = (number * room).long()  # among those not taken, in order
        for block in taken.unbind(1):
            pick = pick + (pick >= block)
        picks.append(torch.where(room > 0, pick, -1))
        taken = torch.cat([taken, torch.where(room > 0, pick, beyond)[:, None]], 1).sort().values
    return torch.stack(picks, 1) if picks else torch.empty(blocks, 0, dtype=torch.long)


@dataclass(frozen=True, eq=False)
class Picked:
    """A rule: a position in query block r sees the key blocks table[r] of `size` positions; -1 is none."""

    size: int
    table: Int[Tensor, "blocks picks"]
    _there: dict[torch.device, Tensor] = field(default_factory=dict, repr=False)
    """the table on the devices that asked: inside a compiled kernel nothing can be moved"""

    def __call__(self, i: Any, j: Any) -> Any:
        size, table = self.size, self.table
        rows, columns = i // size, j // size
        if isinstance(rows, Span):
            last, device = rows.hi.clamp_max(len(table) - 1), rows.lo.device
            reach = torch.arange(max(int((last - rows.lo).max()) + 1, 1), device=device)  # blocks that a span touches
            at = rows.lo[..., None] + reach
            picked = self._on(device)[at.clamp(0, len(table) - 1)].masked_fill((at > last[..., None])[..., None], -1)
            low, high = columns.lo[..., None, None], columns.hi[..., None, None]
            may = ((picked >= low) & (picked <= high)).flatten(-2).any(-1)
            return Possibility(may, may & (rows.lo == rows.hi) & (columns.lo == columns.hi))
        # pick by pick: FlexAttention's kernels are of elements, and an `any` over picks came out wrong in them
        at, real = rows.clamp(max=len(table) - 1), rows < len(table)
        held = torch.zeros_like(real & (columns == rows))
        table = self._on(rows.device)
        for pick in range(table.shape[1]):
            held = held | (table[at, pick] == columns)
        return held & real

    def __reduce__(self) -> tuple[type["Picked"], tuple[int, Tensor]]:
        return Picked, (self.size, self.table)  # and not what other devices have

    def _on(self, device: torch.device) -> Int[Tensor, "blocks picks"]:
        if device not in self._there:
            self._there[device] = self.table.to(device)
        return self._there[device]
