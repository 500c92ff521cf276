"""The template of blocks: attention and more, around a stream of hidden states."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.core.attention import generator
from regard.core.errors import ConfigError
from regard.core.state import State
from regard.layer import AttentionLayer, LayerOutput
from regard.memory import MemoryState
from regard.models.block_config import BlockConfig, NormPlace, Recomputed
from regard.models.parts import Mlp, build_norm, in_pieces
from regard.models.recompute import recomputed
from regard.position import Position


class Block(nn.Module, ABC):
    """Template: one layer of a Transformer, an attention layer and an MLP around a residual stream.

    `enter` and `leave` are what the first block takes and the last one gives back, where a stream is more than hidden
    states (two of them, say). A block that has no MLP or gates of its own between averages and output makes these in
    `__init__`, and calls `values` and `output` of its attention layer.

    Args:
        config: shape of the model.
        attention: the attention layer.
        seed: of the MLP's initial weights.

    A model whose position scheme is `per_layer` sets `position`, which is added to what enters.
    """

    branches: ClassVar[int] = 2
    """branches that are added to the residual stream"""
    has_mlp: ClassVar[bool] = True
    """whether an MLP has a place in it"""
    places: ClassVar[tuple[NormPlace, ...]] = ("pre", "post")
    """where its norms may stand"""
    projections: ClassVar[str | None] = None
    """of its attention layer; None: those of the configuration"""

    def __init__(self, config: BlockConfig, attention: AttentionLayer, *, seed: int) -> None:
        super().__init__()
        if config.mlp != "none" and not self.has_mlp:
            raise ConfigError(f"block={config.block!r} has gates in the place of an MLP; set mlp='none'")
        if self.projections is not None and config.projections != "all":
            raise ConfigError(
                f"block={config.block!r} has projections of its own; leave projections={config.projections!r} out"
            )
        if config.norm not in self.places:
            raise ConfigError(f"block={config.block!r} has no norm={config.norm!r}; set norm={self.places[0]!r}")
        self.place: NormPlace = config.norm
        self.checkpoint: Recomputed = config.checkpoint
        self.mlp_chunks = config.mlp_chunks
        self.attention = attention
        self.position: Position | None = None
        self.attention_norm = build_norm(config.norm_kind, config.dim, bias=config.bias, eps=config.norm_eps)
        self.mlp: Mlp | None = None
        # GPT-2 shrinks what enters the residual stream, so that its variance does not grow with depth.
        scale = (self.branches * config.layers) ** -0.5 if config.norm == "pre" else 1.0
        with torch.no_grad():
            attention.projections.output.weight.mul_(scale)
        if config.mlp != "none":
            draw = generator(seed, "mlp")
            self.mlp = Mlp(config.dim, config.mlp_width, config.mlp, bias=config.bias, draw=draw, scale=scale)
        self.dropout = nn.Dropout(config.dropout)

    @classmethod
    def value_dim(cls, config: BlockConfig) -> int:
        """Width of a head's values."""
        return config.value_dim or config.key_dim

    @classmethod
    def enter(cls, x: Float[Tensor, "batch length dim"]) -> Tensor:
        """The stream that the first block takes."""
        return x

    def leave(self, stream: Tensor) -> Float[Tensor, "batch length width"]:
        """Hidden states of the stream that the last block gave."""
        return stream

    @classmethod
    def stack(cls, calls: "Sequence[tuple[Block, Mapping[str, Any]]]", x: Tensor) -> tuple[Tensor, list[LayerOutput]]:
        """The stream after all blocks, and what each one gave.

        Args:
            calls: blocks in order, each with the arguments of its call besides the stream.
            x: what `enter` gave.
        """
        outputs: list[LayerOutput] = []
        for block, given in calls:
            outputs.append(block(x, **given))
            x = outputs[-1].hidden
        return x, outputs

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        marks: Int[Tensor, "batch length"] | None = None,
        state: State | None = None,
        memory: MemoryState | None = None,
        only: Bool[Tensor, "batch length"] | None = None,
        counted: Bool[Tensor, "batch length"] | None = None,
    ) -> LayerOutput:
        """The hidden states after this block; state, memory and losses as `AttentionLayer` returns them.

        Args:
            only: the tokens whose hidden states are asked for, where the MLP of the others may be left out; what comes
                back for them means nothing. Keys and values are those of all.
            counted: as `AttentionLayer.forward`.
        """
        given = {"key_mask": key_mask, "positions": positions, "marks": marks, "memory": memory, "counted": counted}
        call = partial(self.run, only=only, **given)
        return recomputed(self.checkpoint == "block", call, self.placed(x, positions), module=self, state=state)

    @property
    def called(self) -> bool:
        """Whether its weights are read in calls of it alone, so that they may be elsewhere between them."""
        return self.attention.memory is None

    @property
    def placed_at(self) -> bool:
        """Whether it takes `positions`: a table of its own, or a scheme that turns queries and keys."""
        scheme = self.attention.position
        return self.position is not None or (scheme is not None and scheme.transforms)

    def placed(self, x: Tensor, positions: Tensor | None) -> Tensor:
        """What enters, with the rows of this block's own table that `positions` name, where it has one."""
        if self.position is None:
            return x
        assert positions is not None
        return self.position.embed(x, positions)

    @abstractmethod
    def run(self, x: Tensor, *, state: State | None, only: Tensor | None, **given: Any) -> LayerOutput:
        """The algorithm, which a backward pass may run again; `given` is what else the attention layer takes."""

    @abstractmethod
    def attended(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch length dim"]:
        """The attention layer's input, made of the hidden states that enter."""

    def remember(
        self,
        x: Float[Tensor, "batch length dim"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        marks: Int[Tensor, "batch length"] | None = None,
        state: State,
    ) -> State:
        """The state after hidden states that skip this block: that of a whole call, without its averages and MLP."""
        inner = self.attended(self.placed(x, positions))
        return self.attention.remember(inner, key_mask=key_mask, positions=positions, marks=marks, state=state)

    def mixed(
        self, x: Float[Tensor, "batch length dim"], only: Bool[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch length dim"]:
        """The MLP of every position; with `only`, of these, and 0 for the others."""
        assert self.mlp is not None
        if only is None:
            return in_pieces(self.mlp, x, self.mlp_chunks)
        found = in_pieces(self.mlp, x[only][None], self.mlp_chunks)[0]
        whole = torch.zeros_like(x, dtype=found.dtype)  # autocast gives products its own
        whole[only] = found
        return whole

    def dropped(self, branch: Tensor) -> Tensor:
        """A branch with elements dropped in training."""
        return self.dropout(branch) if self.training else branch


class OneStream(Block, ABC):
    """Template: a block whose stream is hidden states, which reads the answer of its attention layer once."""

    def attended(self, x: Tensor) -> Tensor:
        """norm(x) before attention, or x."""
        return self.attention_norm(x) if self.place == "pre" else x

    def run(self, x: Tensor, *, state: State | None, only: Tensor | None, **given: Any) -> LayerOutput:
        """Attention, and what follows it."""
        inner, attend = self.attended(x), partial(self.attention, **given)
        output = recomputed(self.checkpoint == "attention", attend, inner, module=self, state=state)
        return LayerOutput(self.behind(x, inner, output.hidden, only), *output[1:])

    @abstractmethod
    def behind(
        self,
        x: Float[Tensor, "batch length dim"],
        inner: Float[Tensor, "batch length dim"],
        answer: Float[Tensor, "batch length dim"],
        only: Bool[Tensor, "batch length"] | None,
    ) -> Float[Tensor, "batch length dim"]:
        """The hidden states after the block: from those that entered, what attention read and what it answered.

        Args:
            only: as `forward`.
        """
