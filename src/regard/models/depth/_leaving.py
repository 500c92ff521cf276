"""The loop over blocks that tokens leave: who skips what, and what is kept of whom."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.models.blocks import Block
from regard.models.depth._base import over
from regard.state import State
from regard.transforms import transformed

Leaves = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""says after block n, from 0, which tokens go on (batch, length), from those that did and the hidden states after and
before it"""
Kept = Callable[[Tensor, Tensor, Tensor], Tensor]
"""makes the hidden states after a block from which tokens took it, and those after and before it"""


class Left(NamedTuple):
    """hidden: as tokens left (batch, length, dim). states, losses: of each block. exits: hidden states after each block
    that was run. steps: (batch, length), blocks that each token took."""

    hidden: Tensor
    states: list[State | None]
    losses: list[Mapping[str, Tensor]]
    exits: list[Tensor]
    steps: Tensor


def until_left(
    blocks: Sequence[Block],
    x: Tensor,
    states: Sequence[State | None],
    *,
    leaves: Leaves | None,
    kept: Kept,
    key_mask: Tensor | None,
    positions: Tensor | None,
    marks: Sequence[Tensor | None] | None,
    training: bool,
) -> Left:
    """Every block, for the tokens that have not left.

    A block takes the keys of tokens that have left from the states that these left with. MLPs are computed of the
    others alone, averages of all; a block that no token of the call needs is left out but for its keys. In training
    everything is computed of every token.

    Args:
        leaves: asked after every block but the last; None: no token leaves.
        kept: as `Depth` schemes put hidden states together.
        key_mask, positions, marks: as `Depth.forward`.
    """
    active = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if key_mask is None else key_mask
    steps, after = torch.zeros_like(active, dtype=torch.long), list(states)
    losses: list[Mapping[str, Tensor]] = [{} for _ in blocks]
    exits: list[Tensor] = []
    for at, block in enumerate(blocks):
        given = {
            "key_mask": key_mask,
            "positions": positions if block.placed_at else None,
            "marks": None if marks is None else marks[at],
        }
        state = after[at]
        if not training and over(active):
            after[at] = None if state is None else block.remember(x, **given, state=state)
            continue
        only = active if at and leaves is not None and not training and few(active) else None
        got = block(x, **given, state=state, only=only)
        after[at], losses[at] = got.state, got.losses
        before, x = x, kept(active, got.hidden, x)
        steps = steps + active
        exits += [x] if training else []
        if leaves is not None and at < len(blocks) - 1:
            active = leaves(at, active, x, before)
    return Left(x, after, losses, exits, steps)


def few(active: Tensor) -> bool:
    """Whether it pays to compute of these tokens alone; a compiled or transformed call has no answer to branch on."""
    return not (torch.compiler.is_compiling() or transformed()) and not active.all()


def of_some(active: Tensor, sureness: Callable[[Tensor, Tensor], Tensor], hidden: Tensor, before: Tensor) -> Tensor:
    """sureness(hidden, before) (batch, length) of active tokens, and of the others nothing that is asked for."""
    if not few(active):
        return sureness(hidden, before)
    found = sureness(hidden[active][None], before[active][None])
    sure = found.new_zeros(active.shape)
    sure[active] = found[0]
    return sure
