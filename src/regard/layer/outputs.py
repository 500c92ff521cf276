"""The answer of a layer, and its memory of a source."""

from typing import NamedTuple

from torch import Tensor

from regard.core.errors import UnsupportedError
from regard.core.info import Heads
from regard.core.state import State, Summary
from regard.memory import MemoryState


class LayerOutput(NamedTuple):
    """hidden: (batch, length, dim). state and memory: only if they were passed. losses: as `Attended.losses`, those of
    the memory under `memory.`, and `output_l1` of a layer that has it, which is weighted already."""

    hidden: Tensor
    state: State | None
    memory: MemoryState | None
    losses: dict[str, Tensor]

    @property
    def alone(self) -> Tensor:
        """The hidden states, where nothing else would be lost."""
        lost = [*(name for name in ("state", "memory") if getattr(self, name) is not None), *self.losses]
        if lost:
            raise UnsupportedError(f"return_state=False would lose {', '.join(lost)}; leave it out, and read .hidden")
        return self.hidden


class LayerValues(NamedTuple):
    """values: (batch, heads, length, value), before the output projection. The rest: as `LayerOutput`."""

    values: Tensor
    state: State | None
    memory: MemoryState | None
    losses: dict[str, Tensor]


class Prepared(Summary):
    """The projected keys and values of a source, for mechanisms that keep no state of their own."""


def prepared(heads: Heads, q: Tensor, state: State | None) -> tuple[Tensor, Tensor, Tensor | None, State | None]:
    """Keys, values and mask of a call whose source is in its state, and what is left of that for the mechanism."""
    if isinstance(state, Prepared):
        return state["k"], state["v"], state.content.get("key_mask"), None
    size = q.shape[0], heads.kv_heads, 0
    return q.new_zeros(*size, heads.key_dim), q.new_zeros(*size, heads.value_width), None, state
