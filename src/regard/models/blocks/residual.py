"""The block of the Transformer: two residual branches one after the other."""

from functools import partial
from typing import final

from torch import Tensor

from regard.layer import AttentionLayer, LayerOutput
from regard.memory import MemoryState
from regard.models.block_config import BlockConfig
from regard.models.blocks._base import Block
from regard.models.parts import build_norm
from regard.models.recompute import recomputed
from regard.state import State


@final
class Residual(Block):
    """Attention, then an MLP, each with a residual connection and a norm.

    Pre-norm: x + f(norm(x)). Post-norm: norm(x + f(x)).

    Source: Vaswani et al. 2017, section 3.1; pre-norm: Radford et al. 2019, section 2.3.
    """

    def __init__(self, config: BlockConfig, attention: AttentionLayer, *, seed: int) -> None:
        super().__init__(config, attention, seed=seed)
        if self.mlp is not None:
            self.mlp_norm = build_norm(config.norm_kind, config.dim, bias=config.bias, eps=config.norm_eps)

    def attended(self, x: Tensor) -> Tensor:
        """norm(x) before attention, or x."""
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
        """Both branches."""
        pre, norm = self.place == "pre", self.attention_norm
        attend = partial(self.attention, key_mask=key_mask, positions=positions, marks=marks, memory=memory)
        output = recomputed(self.checkpoint == "attention", attend, self.attended(x), module=self, state=state)
        x = x + self.dropped(output.hidden)
        x = x if pre else norm(x)
        if self.mlp is not None:
            norm = self.mlp_norm
            x = x + self.dropped(self.mixed(norm(x) if pre else x, only))
            x = x if pre else norm(x)
        return LayerOutput(x, output.state, output.memory, output.losses)
