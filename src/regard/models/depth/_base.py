"""Who runs the blocks: how often, in what order, and how far."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.core import registered_name
from regard.memory import MemoryState
from regard.models.blocks import Block
from regard.options import Configured
from regard.state import State


class Threads(NamedTuple):
    """The past of every block, which a call carries along, one entry for each; None: nothing is kept."""

    states: Sequence[State | None]
    memories: Sequence[MemoryState | None]


class Looped(NamedTuple):
    """Results of the loop over the blocks.

    hidden: (batch, length, dim). states and memories: of each block, as `AttentionLayer` returns them. losses: of each
    block. exits: hidden states at which a token might have left, in training, for schemes that learn to.
    """

    hidden: Tensor
    states: list[State | None]
    memories: list[MemoryState | None]
    losses: list[Mapping[str, Tensor]]
    exits: tuple[Tensor, ...] = ()


class Depth(Configured, ABC):
    """Template: runs the blocks of a model. What it learns to decide with are its own weights.

    A block that is skipped still gets its keys, by `Block.remember`; rows that leave at different depths put their
    states together with `State.where`.

    Raises:
        ConfigError: an unknown option, one of another type or out of bounds.
    """

    if not TYPE_CHECKING:  # type checkers make the signature from the annotated attributes

        def __init__(self, **options):
            super().__init__()
            self.configure(options, f"depth {registered_name(type(self))}")

    @abstractmethod
    def forward(
        self,
        blocks: Sequence[Block],
        x: Float[Tensor, "batch length dim"],
        threads: Threads,
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        marks: Sequence[Int[Tensor, "batch length"] | None] | None = None,
    ) -> Looped:
        """Hidden states after the blocks.

        Args:
            blocks: in order.
            x: input of the first.
            threads: the past of each block.
            key_mask, positions: as `Block.forward`.
            marks: of each block; None: none.
        """
