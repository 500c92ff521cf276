"""The gated attention unit: one branch in place of attention and MLP."""

from typing import final

from torch import Tensor

from regard.core.errors import ConfigError
from regard.models.block_config import BlockConfig
from regard.models.blocks._base import OneStream


@final
class GatedUnit(OneStream):
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

    def behind(self, x: Tensor, inner: Tensor, answer: Tensor, only: Tensor | None) -> Tensor:
        """The one branch, of all tokens."""
        x = x + self.dropped(answer)
        return x if self.place == "pre" else self.attention_norm(x)
