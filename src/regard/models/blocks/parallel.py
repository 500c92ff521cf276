"""The block whose branches read the same hidden states."""

from functools import partial
from typing import final

from torch import Tensor

from regard.layer import LayerOutput
from regard.memory import MemoryState
from regard.models.blocks._base import Block
from regard.models.recompute import recomputed
from regard.state import State


@final
class Parallel(Block):
    """Attention and MLP side by side, with one norm: x + attention(norm(x)) + mlp(norm(x)); post-norm: of the sum.

    Source: Wang and Komatsuzaki 2021 (GPT-J); Chowdhery et al. 2022 (PaLM), section 2.
    """

    def attended(self, x: Tensor) -> Tensor:
        """norm(x) before both branches, or x."""
        return self.attention_norm(x) if self.place == "pre" else x

    def run(
        self,
        x: Tensor,
        key_mask: Tensor | None,
        positions: Tensor | None,
        marks: Tensor | None,
        memory: MemoryState | None,
        state: State | None,
        only: Tensor | None = None,
    ) -> LayerOutput:
        """The sum of both branches."""
        inner = self.attended(x)
        attend = partial(self.attention, key_mask=key_mask, positions=positions, marks=marks, memory=memory)
        output = recomputed(self.checkpoint == "attention", attend, inner, module=self, state=state)
        x = x + self.dropped(output.hidden)
        if self.mlp is not None:
            x = x + self.dropped(self.mixed(inner, only))
        return LayerOutput(
            x if self.place == "pre" else self.attention_norm(x), output.state, output.memory, output.losses
        )
