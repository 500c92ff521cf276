"""Every block, once, in order."""

from collections.abc import Mapping, Sequence
from typing import final

from torch import Tensor

from regard.memory import MemoryState
from regard.models.blocks import Block
from regard.models.depth._base import Depth, Looped, Threads
from regard.state import State


@final
class Fixed(Depth):
    """h = block_L(... block_1(x)), for every token alike.

    Source: Vaswani et al. 2017, section 3.1.
    """

    def forward(
        self,
        blocks: Sequence[Block],
        x: Tensor,
        threads: Threads,
        *,
        key_mask: Tensor | None = None,
        positions: Tensor | None = None,
        marks: Sequence[Tensor | None] | None = None,
    ) -> Looped:
        """One block after the other."""
        states: list[State | None] = []
        memories: list[MemoryState | None] = []
        losses: list[Mapping[str, Tensor]] = []
        x = blocks[0].enter(x)
        for at, block in enumerate(blocks):
            x, state, memory, extra = block(
                x,
                key_mask=key_mask,
                positions=positions,
                marks=None if marks is None else marks[at],
                state=threads.states[at],
                memory=threads.memories[at],
            )
            states.append(state)
            memories.append(memory)
            losses.append(extra)
        return Looped(blocks[-1].leave(x), states, memories, losses)
