"""The block of the Transformer: two residual branches one after the other."""

from typing import final

from torch import Tensor

from regard.layer import AttentionLayer
from regard.models.block_config import BlockConfig
from regard.models.blocks._base import OneStream
from regard.models.parts import build_norm


@final
class Residual(OneStream):
    """Attention, then an MLP, each with a residual connection and a norm.

    Pre-norm: x + f(norm(x)). Post-norm: norm(x + f(x)).

    Source: Vaswani et al. 2017, section 3.1; pre-norm: Radford et al. 2019, section 2.3.
    """

    def __init__(self, config: BlockConfig, attention: AttentionLayer, *, seed: int) -> None:
        super().__init__(config, attention, seed=seed)
        if self.mlp is not None:
            self.mlp_norm = build_norm(config.norm_kind, config.dim, bias=config.bias, eps=config.norm_eps)

    def behind(self, x: Tensor, inner: Tensor, answer: Tensor, only: Tensor | None) -> Tensor:
        """The rest of the first branch, and the second one."""
        pre, norm = self.place == "pre", self.attention_norm
        x = x + self.dropped(answer)
        x = x if pre else norm(x)
        if self.mlp is not None:
            norm = self.mlp_norm
            x = x + self.dropped(self.mixed(norm(x) if pre else x, only))
            x = x if pre else norm(x)
        return x
