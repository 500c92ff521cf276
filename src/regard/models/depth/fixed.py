"""Every block, once, in order."""

from collections.abc import Sequence
from typing import final

from torch import Tensor

from regard.models.blocks import Block
from regard.models.depth._base import NOTHING, Depth, Looped, Threads, Tokens


@final
class Fixed(Depth):
    """h = block_L(... block_1(x)), for every token alike.

    Source: Vaswani et al. 2017, section 3.1.
    """

    steady = True

    def forward(
        self,
        blocks: Sequence[Block],
        x: Tensor,
        threads: Threads,
        *,
        tokens: Tokens = NOTHING,
    ) -> Looped:
        """One block after the other."""
        calls = [
            (
                block,
                {**tokens.given(block, at), "state": threads.states[at], "memory": threads.memories[at]},
            )
            for at, block in enumerate(blocks)
        ]
        x, outputs = blocks[0].stack(calls, blocks[0].enter(x))
        states, memories, losses = ([getattr(one, name) for one in outputs] for name in ("state", "memory", "losses"))
        return Looped(blocks[-1].leave(x), states, memories, losses)
