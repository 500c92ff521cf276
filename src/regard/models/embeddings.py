"""The input of the first block: embedded tokens, or projected vectors, with positions and types."""

import math
from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from regard.core.attention import generator
from regard.core.errors import ConfigError, InputError, LimitError, ShapeError, UnsupportedError, kind_of
from regard.core.info import Heads
from regard.layer import AttentionLayer, GatedProjections, linear
from regard.models.blocks import Block
from regard.models.encoder_config import EncoderConfig, InputConfig
from regard.models.parts import build_norm
from regard.position import Position, build_position
from regard.position.sinusoidal import Sinusoidal


class Embeddings(nn.Module):
    """x_i = dropout(norm(scale E[token_i] + S[type_i] + P_(offset + i))), each part where the configuration has it.

    Vectors take W x + b for the first term, and the learned `cls` stands before them at position 0.

    Args:
        config: the shape; an `EncoderConfig` may add types, vectors and cls.
        causal: whether the blocks are a decoder's, for the position scheme.
        table: E, if it is another part's; None: a table of its own.
        seed: of the initial weights.

    Raises:
        ConfigError: a position offset with a scheme that is not added to the embeddings.

    Source: Vaswani et al. 2017, section 3.4; types and norm: Devlin et al. 2019; cls: Dosovitskiy et al. 2021.
    """

    coordinates: bool = False
    """whether what runs the blocks reads where each token is"""

    def __init__(self, config: InputConfig, *, causal: bool, table: nn.Embedding | None = None, seed: int) -> None:
        super().__init__()
        self.config = config
        of_encoder = config if isinstance(config, EncoderConfig) else EncoderConfig()
        self.table: nn.Embedding | None = None
        self.project: nn.Linear | None = None
        if of_encoder.input_dim:
            self.project = linear(of_encoder.input_dim, config.dim, bias=config.bias, draw=generator(seed, "inputs"))
        else:
            self.table = token_table(config.vocab_size, config.dim, seed=seed) if table is None else table
        self.types: nn.Embedding | None = None
        if of_encoder.token_types:
            types_seed = generator(seed, "types").initial_seed()
            self.types = token_table(of_encoder.token_types, config.dim, seed=types_seed)
        self.cls: nn.Parameter | None = None
        if of_encoder.cls_token:
            self.cls = nn.Parameter(0.02 * torch.randn(config.dim, generator=generator(seed, "cls")))
        self.position = self._position(causal, seed)
        sinusoidal = isinstance(self.position, Sinusoidal) and self.table is not None
        # Vaswani et al. 2017, section 3.4: without the factor the sinusoids, of size 1, would drown the tokens.
        self.scale = config.embedding_scale or (math.sqrt(config.dim) if sinusoidal else 1.0)
        self.norm: nn.Module | None = None
        if config.embedding_norm:
            self.norm = build_norm(config.norm_kind, config.dim, bias=config.bias, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def _position(self, causal: bool, seed: int) -> Position | None:
        config, scheme = self.config, None
        if config.position != "none":
            heads = Heads(
                count=config.heads,
                key_dim=config.key_dim,
                kv_count=config.kv_heads,
                causal=causal,
                max_length=config.max_length + config.position_offset,
                seed=seed,
            )
            scheme = build_position(config.position, heads, config.dim)
        if config.position_offset and not (scheme is not None and scheme.absolute):
            raise ConfigError(
                f"position_offset={config.position_offset} moves rows of a position table, and position "
                f"{config.position!r} has none; use learned, or leave the offset out"
            )
        return scheme

    @property
    def relative(self) -> Position | None:
        """The scheme that acts in every layer, if there is one."""
        return self.position if self.position is not None and not self.position.absolute else None

    def of_block(self, at: int) -> Position | None:
        """The scheme of block `at`, where each has one of its own; that of the first acts on the embeddings."""
        first = self.position
        if first is None or not first.per_layer or not at:
            return None
        seed = generator(first.heads.seed, "positions of block", at).initial_seed()
        return build_position(self.config.position, replace(first.heads, seed=seed), self.config.dim)

    def for_blocks(self, x: Float[Tensor, "batch length dim"], positions: Tensor | None, past: int) -> Tensor | None:
        """`positions` as blocks take them: the rows of their tables, where they have any."""
        own = self.position is not None and self.position.per_layer
        return self._rows(x, positions, past) if own else positions

    def _rows(self, x: Tensor, positions: Tensor | None, past: int) -> Tensor:
        slots = torch.arange(past, past + x.shape[1], device=x.device) if positions is None else positions
        return slots + self.config.position_offset

    @property
    def placed(self) -> bool:
        """Whether the model takes `positions`: something acts on tokens where they are, not on distances alone."""
        scheme = self.position
        return self.coordinates or (scheme is not None and (scheme.absolute or scheme.transforms))

    def forward(
        self,
        inputs: Shaped[Tensor, "batch given *width"],
        *,
        token_types: Int[Tensor, "batch given"] | None = None,
        positions: Int[Tensor, "*batch given"] | None = None,
        past: int = 0,
    ) -> Float[Tensor, "batch length dim"]:
        """The first hidden states; `past` positions were read before.

        Raises:
            ShapeError, InputError: inputs of the wrong shape or out of range.
            LimitError: more positions than the table has.
            UnsupportedError: positions for a scheme that does not take them, or types without a table.
        """
        self.check(inputs, token_types, positions)
        x = self.content(inputs)
        if self.types is not None:
            kinds = inputs.new_zeros(()).expand(inputs.shape[:2]) if token_types is None else token_types
            x = x + self.types(kinds)
        if self.cls is not None:
            x = torch.cat([self.cls.expand(len(x), 1, -1).to(x.dtype), x], 1)
        return self.placed_at(x, positions, past)

    def placed_at(self, x: Float[Tensor, "batch length dim"], positions: Tensor | None, past: int) -> Tensor:
        """Embedded inputs with their absolute positions, the norm and dropout."""
        if self.position is not None and self.position.absolute:
            self.require_room(past + x.shape[1])
            x = self.position.embed(x, self._rows(x, positions, past))
        return self.dropout(x if self.norm is None else self.norm(x))

    def content(self, inputs: Shaped[Tensor, "batch given *width"]) -> Float[Tensor, "batch given dim"]:
        """The rows of the table, or projected vectors, alone."""
        if self.project is not None:
            return self.project(inputs) * self.scale
        return cast(nn.Embedding, self.table)(inputs) * self.scale

    def require_room(self, length: int) -> None:
        """Refuse more positions than the table has.

        Raises:
            LimitError: as said.
        """
        if self.position is not None and self.position.sized and length > self.config.max_length:
            raise LimitError(
                f"this model was built for max_length={self.config.max_length}, got {length} positions; build it with "
                "a larger max_length, or use a scheme without a table (sinusoidal, rotary, alibi)"
            )

    def check(self, inputs: Tensor, token_types: Tensor | None = None, positions: Tensor | None = None) -> None:
        """Refuse inputs of the wrong shape or out of range; errors as `forward`."""
        if self.project is not None:
            width = self.project.in_features
            if (
                not isinstance(inputs, Tensor)
                or inputs.ndim != 3
                or not inputs.is_floating_point()
                or inputs.shape[2] != width
            ):
                raise ShapeError(f"inputs must be vectors (batch, length, input_dim={width}), got {kind_of(inputs)}")
        else:
            check_ids(inputs, self.config.vocab_size, "tokens")
        if token_types is not None:
            if self.types is None:
                raise UnsupportedError("this encoder has no token types; build it with token_types=2 or more")
            check_ids(token_types, self.types.num_embeddings, "token_types")
            if token_types.shape != inputs.shape:
                raise ShapeError(f"token_types must be {tuple(inputs.shape)}, got {tuple(token_types.shape)}")
        if positions is None:
            return
        if not self.placed or self.cls is not None:
            raise UnsupportedError(
                "positions are for tokens under a scheme that places each one (sinusoidal, learned, rotary); "
                f"position {self.config.position!r} here counts slots only"
            )
        if not isinstance(positions, Tensor) or positions.shape not in (inputs.shape[:2], inputs.shape[1:2]):
            raise ShapeError(
                f"positions must be (length,) or (batch, length) as the inputs {tuple(inputs.shape[:2])}, "
                f"got {kind_of(positions)}"
            )


def token_table(rows: int, dim: int, *, seed: int, scale: float = 1.0) -> nn.Embedding:
    """Embeddings, normal with standard deviation 0.02 at dim 768 (GPT-2, BERT), by width; times `scale`."""
    weight = torch.empty(rows, dim).normal_(
        0, scale * 0.02 * (768 / dim) ** 0.5, generator=generator(seed, "embedding")
    )
    return nn.Embedding(rows, dim, _weight=weight)


def check_ids(ids: Tensor, count: int, name: str) -> None:
    """Refuse ids that are no integers (batch, length) below `count`; values are not looked at when compiling.

    Raises:
        ShapeError, InputError: as said.
    """
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise ShapeError(f"{name} must be integers (batch, length), got {kind_of(ids)}")
    if torch.compiler.is_compiling() or not ids.numel():
        return
    low, high = (int(x) for x in ids.aminmax())
    if low < 0 or high >= count:
        raise InputError(f"{name}: id {low if low < 0 else high} is out of range, ids are 0 to {count - 1}")


def build_attention(
    config: InputConfig,
    spec: str,
    *,
    causal: bool,
    position: Position | None = None,
    memory: str | None = None,
    context_dim: int | None = None,
    block: type[Block] = Block,
    seed: int,
) -> AttentionLayer:
    """The attention layer of a block of this class."""
    layer = AttentionLayer(
        config.dim,
        spec,
        heads=config.heads,
        kv_heads=config.kv_heads,
        key_dim=config.key_dim,
        value_dim=block.value_dim(config),
        position=position,
        memory=memory,
        context_dim=context_dim,
        causal=causal,
        max_length=config.max_length,
        dropout=config.attention_dropout,
        projections=block.projections or ("all" if causal or context_dim is not None else config.projections),
        bias=config.bias if config.projection_bias is None else config.projection_bias,
        output_bias=config.bias,
        seed=seed,
    )
    if config.unit_gain is not None and isinstance(layer.projections, GatedProjections):
        layer.projections.set_gains(config.unit_gain)
    return layer


def with_usual_logits(layer: AttentionLayer, config: InputConfig) -> AttentionLayer:
    """The layer with initial logits of the variance of scaled ones, whatever the softmax's scale.

    Raffel et al. 2020 have no 1/sqrt(key_dim) in the score and put it into the initial queries.
    """
    from regard.attention.dense.softmax import Softmax  # its engines are nothing that every model needs

    if isinstance(layer.attention, Softmax) and layer.projections.query is not None:
        with torch.no_grad():
            layer.projections.query.weight.mul_(config.key_dim**-0.5 / layer.attention.factor)
    return layer


def check_mask(mask: Tensor | None, tokens: Tensor) -> None:
    """Refuse a mask that is not bool, with one value for each token or vector.

    Raises:
        ShapeError: as said.
    """
    if not isinstance(tokens, Tensor):
        raise ShapeError(f"tokens must be integers (batch, length), or vectors, got {kind_of(tokens)}")
    wanted = tokens.shape[:2]
    if mask is not None and (not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != wanted):
        raise ShapeError(f"key_mask must be bool {tuple(wanted)}, True = real token, got {kind_of(mask)}")
