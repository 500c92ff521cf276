"""The gated attention unit: one branch in place of attention and MLP."""

from functools import partial
from typing import final

from torch import Tensor

from regard.errors import ConfigError
from regard.layer import LayerOutput
from regard.memory import MemoryState
from regard.models.block_config import BlockConfig
from regard.models.blocks._base import Block
from regard.models.recompute import recomputed
from regard.state import State


@final
class GatedUnit(Block):
    """x + (U * (A V)) W_o with U = silu(x' W_u), V = silu(x' W_v), x' = norm(x); post-norm: norm(x + ...) of x' = x.

    A is any mechanism, of queries and keys that share one projection (see `GatedProjections`): the published unit has
    one head of width 128 with `relu_squared`, FLASH has `mixed_chunk`, GAU-alpha `entropy_scaled`. Values of all heads
    together are twice as wide as the hidden states, unless `value_dim` says otherwise; two units then have about as
    many weights as attention and an MLP.

    Raises:
        ConfigError: a configuration with an MLP, which the gate replaces, or with `projections` of another kind.

    Source: Hua et al. 2022, Transformer Quality in Linear Time, section 2 and figure 2.
    """

    branches = 1
    has_mlp = False
    projections = "gated"

    @classmethod
    def value_dim(cls, config: BlockConfig) -> int:
        """2 dim / heads, unless the configuration says otherwise.

        Raises:
            ConfigError: heads do not divide it.
        """
        if config.value_dim is None and 2 * config.dim % config.heads:
            raise ConfigError(
                f"values are 2 dim = {2 * config.dim} wide, which heads={config.heads} do not divide; give value_dim"
            )
        return config.value_dim or 2 * config.dim // config.heads

    def attended(self, x: Tensor) -> Tensor:
        """norm(x) before the unit, or x."""
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
        """The one branch."""
        attend = partial(self.attention, key_mask=key_mask, positions=positions, marks=marks, memory=memory)
        output = recomputed(self.checkpoint == "attention", attend, self.attended(x), module=self, state=state)
        x = x + self.dropped(output.hidden)
        return LayerOutput(
            x if self.place == "pre" else self.attention_norm(x), output.state, output.memory, output.losses
        )
