"""The template of depths that tokens leave: who skips what, and what is kept of whom."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from regard.core.errors import ConfigError
from regard.core.options import registered_name
from regard.core.state import State
from regard.models.blocks import Block
from regard.models.depth._base import Depth, Tokens

Leaves = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""says after block n, from 0, which tokens go on (batch, length), from those that did and the hidden states after and
before it"""


class Left(NamedTuple):
    """hidden: as tokens left (batch, length, dim). states, losses: of each block. exits: hidden states after each block
    that was run, in training. steps: (batch, length), blocks that each token took."""

    hidden: Tensor
    states: list[State | None]
    losses: list[Mapping[str, Tensor]]
    exits: list[Tensor]
    steps: Tensor


class Begin(NamedTuple):
    """Tokens where an earlier call found them.

    blocks: behind so many. hidden: as tokens left (batch, length, dim). active: those that have not (batch, length).
    steps: blocks that each took so far.
    """

    blocks: int
    hidden: Tensor
    active: Tensor
    steps: Tensor


@dataclass
class Notes:
    """What a call finds behind every block but the last, and where it begins if an earlier call found the rest."""

    begin: Begin | None = None
    """None: before the first block"""
    known: Tensor | None = None
    """confidences that an earlier call found (batch, length, blocks - 1), NaN where it did not; None: none"""
    holds: bool = False
    """whether all tokens take all blocks, whatever is found"""
    sure: list[Tensor] = field(default_factory=list)
    """confidences behind each block that was run (batch, length); of tokens that had left anything"""
    behind: list[Tensor] = field(default_factory=list)
    """hidden states there, as tokens left (batch, length, dim)"""


class Leaving(Depth, ABC):
    """Template: each block once, in order, for the tokens that have not left.

    Raises:
        ConfigError: reversible blocks, whose stream is two, or a memory.
    """

    notes: ClassVar[Notes | None] = None

    @property
    def asks(self) -> bool:
        """Whether one threshold, `threshold`, says where tokens leave."""
        return True

    @abstractmethod
    def limit(self, slots: Tensor) -> Tensor | float:
        """The confidence at which tokens in these slots leave; it falls with the threshold."""

    @contextmanager
    def noting(self, notes: Notes) -> Iterator[None]:
        """Calls within, of whole texts without padding, go by these notes and add to them."""
        vars(self)["notes"] = notes
        try:
            yield
        finally:
            del vars(self)["notes"]

    def goes_on(
        self, at: int, active: Tensor, hidden: Tensor, sureness: Callable[[Tensor], Tensor], limit: Tensor | float
    ) -> Tensor:
        """Which active tokens are not as sure behind block `at`, from 0, as their limit asks.

        Args:
            hidden: states behind the block.
            sureness: confidences (batch, length) of those tokens that it is asked for; of others anything.
        """
        notes = self.notes
        if notes is None:
            return active & ~(sureness(active) >= limit)
        known = None if notes.known is None else notes.known[..., at]
        unknown = active if known is None else active & known.isnan()
        sure = sureness(unknown)
        sure = sure if known is None else torch.where(unknown, sure, known)
        notes.sure.append(sure)
        notes.behind.append(hidden)
        return active if notes.holds else active & ~(sure >= limit)

    def setup(self) -> None:
        """Refuse blocks that cannot be left."""
        name = registered_name(type(self))
        if self.config.block == "reversible":
            raise ConfigError(f"depth={name!r} runs blocks of one stream; use block='residual' or 'parallel'")
        if getattr(self.config, "remembers", False):
            raise ConfigError(f"depth={name!r} has no memory of blocks that were skipped; leave the memory out")

    def until_left(
        self,
        blocks: Sequence[Block],
        x: Tensor,
        states: Sequence[State | None],
        *,
        leaves: Leaves | None,
        tokens: Tokens,
    ) -> Left:
        """Every block, for the tokens that have not left.

        A block takes the keys of tokens that have left from the states that these left with. MLPs are computed of the
        others alone, averages of all; a block that no token of the call needs is left out but for its keys. In training
        everything is computed of every token.

        Args:
            leaves: asked after every block but the last; None: no token leaves.
            tokens: as `Depth.forward`.
        """
        active = (
            torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if tokens.key_mask is None else tokens.key_mask
        )
        steps, after = torch.zeros_like(active, dtype=torch.long), list(states)
        begin = 0
        if self.notes is not None and self.notes.begin is not None:
            begin, x, active, steps = self.notes.begin
        there = known(active)
        losses: list[Mapping[str, Tensor]] = [{} for _ in blocks]
        exits: list[Tensor] = []
        for at, block in enumerate(blocks[begin:], begin):
            given, state = tokens.given(block, at), after[at]
            if not self.training and there == 0:
                after[at] = None if state is None else block.remember(x, **given, state=state)
                continue
            some = there is not None and there < active.numel()
            only = active if at and leaves is not None and not self.training and some else None
            counted = None if leaves is None or block.attention.cache is None else active
            got = block(x, **given, state=state, only=only, counted=counted)
            after[at], losses[at] = got.state, got.losses
            before, x, steps = x, self.kept(active, got.hidden, x), steps + active
            exits += [x] if self.training else []
            if leaves is not None and at < len(blocks) - 1:
                active = leaves(at, active, x, before)
                there = known(active)
        return Left(x, after, losses, exits, steps)

    def kept(self, active: Tensor, after: Tensor, before: Tensor) -> Tensor:
        """The hidden states after a block that only active tokens take."""
        return torch.where(active[..., None], after, before)


def known(active: Tensor) -> int | None:
    """How many tokens these are; None: a compiled call has no answer to branch on."""
    return None if torch.compiler.is_compiling() else int(active.sum())


def few(active: Tensor) -> bool:
    """Whether it pays to compute of these tokens alone."""
    count = known(active)
    return count is not None and count < active.numel()


def of_some(active: Tensor, sureness: Callable[[Tensor, Tensor], Tensor], hidden: Tensor, before: Tensor) -> Tensor:
    """sureness(hidden, before) (batch, length) of active tokens, and of the others nothing that is asked for."""
    if not few(active):
        return sureness(hidden, before)
    found = sureness(hidden[active][None], before[active][None])
    sure = found.new_zeros(active.shape)
    sure[active] = found[0]
    return sure


def taken(steps: Tensor, most: int) -> Sequence[int]:
    """How many blocks any token took, up to `most`; all of these numbers where a call has no answer to branch on."""
    if torch.compiler.is_compiling():
        return range(1, most + 1)
    return [count for count in steps.unique().tolist() if 1 <= count <= most]
