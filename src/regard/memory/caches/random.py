"""Slots by lot, and the last ones: what a policy that knows nothing keeps."""

from functools import cache
from typing import ClassVar, final

import torch
from torch import Tensor

from regard.core.attention import generator
from regard.memory.caches._base import CacheState, Recent

_BLOCK = 1024
"""slots whose lots are drawn together"""


@final
class Random(Recent):
    """Keeps the newest slots, and others by lot: the control of every policy that chooses.

    A lot belongs to (seed, head, slot), so that a slot outside of the newest ones is kept with the same probability
    wherever it is, and every split of a text keeps the same.
    """

    title: ClassVar[str] = "by lot"
    pads: ClassVar[bool] = False

    seed: int = 0
    """of the lots, with that of the mechanism's heads"""

    def worth(self, state: CacheState) -> Tensor:
        """Its lot."""
        slot = state.kept.view()["slot"]
        blocks = range(-(-max(state.length, 1) // _BLOCK))
        drawn = [lots(self.seed, self.heads.seed, self.heads.kv_heads, block) for block in blocks]
        table = torch.cat(drawn, 1).to(slot.device)[None].expand(len(slot), -1, -1)
        return table.gather(2, slot.long().clamp_min(0)).masked_fill(self.staying(state), float("inf"))


@cache
def lots(seed: int, of_heads: int, heads: int, block: int) -> Tensor:
    """(heads, slots) numbers in [0, 1) of one block of slots."""
    draw = generator(seed, "cache", of_heads, block)
    return torch.rand(heads, _BLOCK, dtype=torch.float64, generator=draw)
