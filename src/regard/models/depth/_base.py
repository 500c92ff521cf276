"""Who runs the blocks: how often, in what order, and how far."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.core.attention import registered_name
from regard.core.options import Configured, option
from regard.core.state import State
from regard.memory import MemoryState
from regard.models.block_config import BlockConfig
from regard.models.blocks import Block

Readout = Callable[[Float[Tensor, "batch length dim"]], Float[Tensor, "batch length vocab"]]
"""the logits that the model would give if its blocks ended here: its last norm and its output layer"""


class Threads(NamedTuple):
    """The past of every block, which a call carries along, one entry for each; None: nothing is kept."""

    states: Sequence[State | None]
    memories: Sequence[MemoryState | None]


class Tokens(NamedTuple):
    """What is known of the tokens of a call. key_mask, positions: as `Block.forward`. marks: of each block."""

    key_mask: Bool[Tensor, "batch length"] | None = None
    positions: Int[Tensor, "*batch length"] | None = None
    marks: Sequence[Int[Tensor, "batch length"] | None] | None = None

    def given(self, block: Block, at: int) -> dict[str, Any]:
        """The arguments of a call of a block, the one with this number; positions where it takes any."""
        return {
            "key_mask": self.key_mask,
            "positions": self.positions if block.placed_at else None,
            "marks": None if self.marks is None else self.marks[at],
        }

    def slots(self, x: Tensor, past: int) -> Tensor:
        """Where each token is: `positions`, or the slots behind the past."""
        return torch.arange(past, past + x.shape[1], device=x.device) if self.positions is None else self.positions


class Looped(NamedTuple):
    """Results of the loop over the blocks.

    hidden: (batch, length, dim). states and memories: of each block, as `AttentionLayer` returns them. losses: of each
    block. exits: hidden states at which a token might have left, in training, for schemes that learn to. own: losses of
    the scheme, in training. steps: (batch, length) of a scheme that decides, how many each token took.
    """

    hidden: Tensor
    states: list[State | None]
    memories: list[MemoryState | None]
    losses: Sequence[Mapping[str, Tensor]]
    exits: tuple[Tensor, ...] = ()
    own: Mapping[str, Tensor] = {}
    steps: Tensor | None = None


NOTHING = Tokens()


class Depth(Configured, ABC):
    """Template: runs the blocks of a model. What it learns to decide with are its own weights.

    A block that is skipped still gets its keys, by `Block.remember`; rows that leave at different depths put their
    states together with `State.where`.

    Args:
        config: shape of the model.

    Raises:
        ConfigError: an unknown option, one of another type or out of bounds.
    """

    steady: ClassVar[bool] = False
    """whether every pass that trains calls each block once, in the same order, whatever the data"""
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({},)
    """option sets that checks build"""

    config: BlockConfig = option(kw_only=False)

    if not TYPE_CHECKING:  # type checkers make the signature from the annotated attributes

        def __init__(self, config, **options):
            super().__init__()
            self.config = config
            self.configure(options, f"depth {registered_name(type(self))}")
            self.setup()

    @classmethod
    def _places(cls) -> tuple[str, ...]:
        return ("config",)

    def setup(self) -> None:
        """Check the shape of the model and draw the weights."""

    @property
    def places(self) -> bool:
        """Whether it reads where each token is."""
        return False

    @property
    def reads_out(self) -> bool:
        """Whether `forward` takes `readout`, a `Readout`, as well, which only models with an output layer have."""
        return False

    @property
    def learns(self) -> bool:
        """Whether `forward` takes `targets` in training, (batch, length), negative where there is none."""
        return False

    @property
    def obeys(self) -> bool:
        """Whether `forward` takes `depths`, after how many blocks each token leaves (batch, length)."""
        return False

    @property
    def each(self) -> int:
        """Blocks that a step of a token is."""
        return 1

    @property
    def most(self) -> int | None:
        """Blocks that a token takes at most, of a scheme that decides for each; None: all tokens take the same."""
        return None

    @property
    def losses(self) -> Mapping[str, float]:
        """Losses that it gives in training, with their weights."""
        return {}

    def initial_state(
        self, blocks: Sequence[Block], batch: int, *, device: torch.device, dtype: torch.dtype
    ) -> list[State]:
        """What each block keeps, before the first token."""
        return [block.attention.initial_state(batch, device=device, dtype=dtype) for block in blocks]

    @abstractmethod
    def forward(
        self,
        blocks: Sequence[Block],
        x: Float[Tensor, "batch length dim"],
        threads: Threads,
        *,
        tokens: Tokens = NOTHING,
    ) -> Looped:
        """Hidden states after the blocks.

        Args:
            blocks: in order.
            x: input of the first.
            threads: the past of each block.
            tokens: what is known of them.
        """


def over(active: Tensor) -> bool:
    """Whether no token goes on; a compiled call has no answer to branch on."""
    return not torch.compiler.is_compiling() and not active.any()
