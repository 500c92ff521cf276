"""What encoders and decoders have in common: blocks, who runs them, and the norm behind them."""

from collections.abc import Iterable
from typing import Any, cast

from torch import Tensor, nn

from regard.core.attention import Attention
from regard.layer import AttentionLayer
from regard.models.blocks import Block
from regard.models.depth import Looped, Threads, Tokens, build_depth
from regard.models.embeddings import Embeddings
from regard.models.encoder_config import InputConfig
from regard.models.losses import added_up, loss_names, loss_weights, of_depth
from regard.models.parts import build_norm
from regard.models.sharing import share_between_layers


class Stack(nn.Module):
    """Template: blocks that a depth runs on embeddings, and a norm at the end, which post-norm blocks have already."""

    embeddings: Embeddings

    def _stack(self, config: InputConfig, blocks: Iterable[Block], *, width: int) -> None:
        """Make the blocks the model's own; `width` is that of the hidden states that leave the last one."""
        self.blocks = nn.ModuleList(blocks)
        share_between_layers(self.mechanisms)
        self.depth = build_depth(config.depth, config)
        self.embeddings.coordinates = self.depth.places
        self.norm: nn.Module | None = None
        if config.norm == "pre":
            self.norm = build_norm(config.norm_kind, width, bias=config.bias, eps=config.norm_eps)
        self.loss_names = loss_names(self.layers)
        self.loss_weights = {**loss_weights(self.layers), **of_depth(self.depth.losses)}

    def _looped(
        self, x: Tensor, threads: Threads | None, tokens: Tokens, **told: Any
    ) -> tuple[Looped, dict[str, Tensor]]:
        """What the loop over the blocks gives, behind the last norm, and the losses; `told`: as the depth takes it."""
        blocks, nothing = [cast(Block, block) for block in self.blocks], [None] * len(self.blocks)
        looped = self.depth(blocks, x, threads or Threads(nothing, nothing), tokens=tokens, **told)
        return looped._replace(hidden=self._normed(looped.hidden)), added_up(looped, self.loss_names)

    def _normed(self, hidden: Tensor) -> Tensor:
        return hidden if self.norm is None else self.norm(hidden)

    @property
    def layers(self) -> list[AttentionLayer]:
        """The attention layer of every block, in order."""
        return [cast(Block, block).attention for block in self.blocks]

    @property
    def mechanisms(self) -> list[Attention]:
        """The attention mechanism of every layer, in order."""
        return [layer.attention for layer in self.layers]

    def parameter_count(self) -> int:
        """Trained weights, shared ones once."""
        return sum(x.numel() for x in self.parameters())
