"""The causal decoder language model: embeddings, blocks, output layer, and its state."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.catalog import build
from regard.core import Attention, generator
from regard.errors import ConfigError, InputError, ShapeError, UnsupportedError
from regard.info import Heads
from regard.layer import AttentionLayer
from regard.models.blocks import Block, ShortConvolution, build_norm, linear
from regard.models.config import ModelConfig
from regard.models.losses import add_losses, loss_names, loss_weights
from regard.models.sharing import save_once
from regard.position import Position, build_position
from regard.position.sinusoidal import Sinusoidal
from regard.state import State


@dataclass(frozen=True)
class ModelState(State):
    """The past of every layer, and the last embeddings that the short convolution still needs (None without one)."""

    layers: tuple[State, ...]
    tail: Tensor | None = None

    @property
    def length(self) -> int:  # type: ignore[override]
        return self.layers[0].length

    def tensors(self) -> dict[str, Tensor]:
        own = {} if self.tail is None else {"tail": self.tail}
        return {**self._gather([layer.tensors() for layer in self.layers]), **own}

    def shared(self) -> frozenset[str]:
        return frozenset(f"layers.{at}.{name}" for at, layer in enumerate(self.layers) for name in layer.shared())

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        layers = [layer.with_tensors(self._below(tensors, at)) for at, layer in enumerate(self.layers)]
        return type(self)(tuple(layers), tensors.get("tail"))

    def dump(self) -> dict[str, Tensor]:
        own = {} if self.tail is None else {"tail": self.tail.contiguous()}
        return {**self._gather([layer.dump() for layer in self.layers]), **own}

    def load(self, tensors: Mapping[str, Tensor]) -> Self:
        layers = [layer.load(self._below(tensors, at)) for at, layer in enumerate(self.layers)]
        return type(self)(tuple(layers), tensors.get("tail"))

    @staticmethod
    def _gather(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {f"layers.{at}.{name}": x for at, part in enumerate(parts) for name, x in part.items()}

    @staticmethod
    def _below(tensors: Mapping[str, Tensor], at: int) -> dict[str, Tensor]:
        prefix = f"layers.{at}."
        return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


class ModelOutput(NamedTuple):
    """logits: (batch, length, vocab_size). state: only if one was passed. losses: in training only, unweighted."""

    logits: Tensor
    state: ModelState | None
    losses: dict[str, Tensor]


class Hidden(NamedTuple):
    """hidden: (batch, length, dim), what the output layer reads. state and losses: as `ModelOutput`."""

    hidden: Tensor
    state: ModelState | None
    losses: dict[str, Tensor]


class LanguageModel(nn.Module):
    """p(x_{t+1} | x_1 ... x_t) = softmax(E norm(block_L(... block_1(E^T x + position)))).

    Weights, with V = vocab_size, D = dim, M = the MLP's width, r = kv_heads / heads, for mechanisms that have none of
    their own and read q, k and v:

        V D (2 V D untied) + layers * (2 D^2 (1 + r) + m D M + norms) + final norm (+ max_length D, learned positions)

    where m = 2, or 3 for a gated unit; with `head_dim`, heads head_dim stands for one D of D^2. A norm has D weights.
    With `bias`: D more per LayerNorm, and one per output of every linear layer but the last. The layers' auxiliary
    losses of one name are added up: each acts on its own layer as it would alone. Absolute positions are added to the
    embeddings; a relative scheme is one module that all layers share.

    Args:
        config: the shape.

    Raises:
        ConfigError: an unknown mechanism, position or option.
        UnsupportedError: a mechanism that cannot be causal, or cannot take the position scheme or the dropout.

    Example:
        >>> import torch
        >>> model = LanguageModel(ModelConfig(dim=32, attention=("linear", "softmax")))
        >>> model(torch.tensor([[72, 101, 108]])).logits.shape
        torch.Size([1, 3, 256])

    Source: Vaswani et al. 2017, section 3 (decoder); initial weights as GPT-2 (Radford et al. 2019), by width: normal,
    variance 1 / inputs, residual outputs shrunk by 1/sqrt(2 layers), embeddings 0.02 at dim 768.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.dim, _weight=torch.empty(config.vocab_size, config.dim))
        draw = generator(config.seed, "embedding")
        with torch.no_grad():
            self.embedding.weight.normal_(0, 0.02 * (768 / config.dim) ** 0.5, generator=draw)
        self.convolution: ShortConvolution | None = None
        if config.short_convolution:
            taps = generator(config.seed, "convolution")
            self.convolution = ShortConvolution(config.dim, config.short_convolution, draw=taps)
        self.position = self._position()
        # Vaswani et al. 2017, section 3.4: without the factor the sinusoids, of size 1, would drown the tokens.
        self.scale = math.sqrt(config.dim) if isinstance(self.position, Sinusoidal) else 1.0
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(self._block(at, spec) for at, spec in enumerate(config.specs))
        self.norm: nn.Module | None = None
        if config.norm == "pre":
            self.norm = build_norm(config.norm_kind, config.dim, bias=config.bias, eps=config.norm_eps)
        self.output: nn.Linear | None = None
        if not config.tied:
            draw = generator(config.seed, "output")
            self.output = linear(config.dim, config.targets or config.vocab_size, bias=False, draw=draw)
        self.loss_names = loss_names(self.mechanisms)
        self.loss_weights = loss_weights(self.mechanisms)
        save_once(self)

    def _position(self) -> Position | None:
        config = self.config
        if config.position == "none":
            return None
        heads = Heads(
            count=config.heads,
            key_dim=config.key_dim,
            kv_count=config.kv_heads,
            causal=True,
            max_length=config.max_length,
            seed=config.seed,
        )
        return build_position(config.position, heads, config.dim)

    def _block(self, at: int, spec: str) -> Block:
        config = self.config
        seed = generator(config.seed, "layer", at).initial_seed()
        attention = AttentionLayer(
            config.dim,
            spec,
            heads=config.heads,
            kv_heads=config.kv_heads,
            key_dim=config.key_dim,
            value_dim=config.key_dim,
            position=self.relative,
            max_length=config.max_length,
            dropout=config.attention_dropout,
            projections=config.projections,
            bias=config.bias,
            seed=seed,
        )
        return Block(config, attention, seed=seed)

    @property
    def absolute(self) -> Position | None:
        """The scheme that acts on the embeddings, if there is one."""
        return self.position if self.position is not None and self.position.absolute else None

    @property
    def relative(self) -> Position | None:
        """The scheme that acts in every layer, if there is one."""
        return self.position if self.position is not None and not self.position.absolute else None

    @property
    def placed(self) -> bool:
        """Whether the scheme takes `positions`: it acts on tokens where they are, not on distances alone."""
        return self.position is not None and (self.position.absolute or self.position.transforms)

    @property
    def mechanisms(self) -> list[Attention]:
        """The attention mechanism of every layer, in order."""
        return [cast(Block, block).attention.attention for block in self.blocks]

    @property
    def streams(self) -> bool:
        """Whether every layer keeps a state, so that `initial_state` works."""
        return all(mechanism.info.supports.state for mechanism in self.mechanisms)

    @property
    def pads(self) -> bool:
        """Whether rows of unequal length may share a batch by left padding: no pattern depends on absolute slots."""
        return all(m.info.supports.key_mask and not m.info.anchored for m in self.mechanisms)

    @cached_property
    def limit(self) -> int | None:
        """Longest sequence, `max_length` where a weight or a bucket depends on it; None: any.

        A mechanism that depends on it refuses to be built without it (see `Heads`).
        """
        if self.position is not None and self.position.sized:
            return self.config.max_length
        for spec, mechanism in zip(self.config.specs, self.mechanisms, strict=True):
            try:
                build(spec, replace(mechanism.heads, max_length=None))
            except ConfigError:
                return self.config.max_length
        return None

    def parameter_count(self) -> int:
        """Trained weights, shared ones once."""
        return sum(x.numel() for x in self.parameters())

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> ModelState:
        """The state before the first token, by default on the device and in the dtype of the weights.

        Raises:
            UnsupportedError: a mechanism without a state.
        """
        weight = self.embedding.weight
        device, dtype = device or weight.device, dtype or weight.dtype
        layers = tuple(
            cast(Block, block).attention.initial_state(batch, device=device, dtype=dtype) for block in self.blocks
        )
        tail = None if self.convolution is None else self.convolution.initial(batch, device=device, dtype=dtype)
        return ModelState(layers, tail)

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        state: ModelState | None = None,
    ) -> ModelOutput:
        """Logits of the next token at every position.

        Args:
            tokens: ids below `vocab_size`.
            key_mask: True = real token; masked ones influence no other position.
            positions: for absolute and rotary schemes, where each token is (left-padded rows start late); None: slots,
                counting from the state's end.
            state: the past, from `initial_state` or an earlier call.

        Raises:
            InputError: a token id out of range (not checked inside `torch.compile`).
            ShapeError: tokens or a mask of the wrong shape or dtype.
            LimitError: longer than `max_length` where weights depend on it.
            UnsupportedError: positions for a scheme of distances, or what a mechanism does not support.
        """
        hidden, state, losses = self.hidden(tokens, key_mask=key_mask, positions=positions, state=state)
        return ModelOutput(self.logits(hidden), state, losses)

    def logits(self, hidden: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows vocab"]:
        """The output layer alone."""
        return nn.functional.linear(hidden, self.embedding.weight) if self.output is None else self.output(hidden)

    def hidden(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        state: ModelState | None = None,
    ) -> Hidden:
        """All but the output layer; arguments and errors as `forward`."""
        self._check(tokens, key_mask, positions)
        x = self.embedding(tokens) * self.scale
        tail: Tensor | None = None
        if self.convolution is not None:
            x, tail = self.convolution(x, key_mask, None if state is None else state.tail)
        if self.absolute is not None:
            past = 0 if state is None else state.length
            slots = torch.arange(past, past + tokens.shape[1], device=tokens.device)
            x = self.absolute.embed(x, slots if positions is None else positions)
        x = self.dropout(x)
        states: list[State] = []
        losses: dict[str, Tensor] = {}
        for at, (block, names) in enumerate(zip(self.blocks, self.loss_names, strict=True)):
            before = None if state is None else state.layers[at]
            x, after, _, extra = block(x, key_mask=key_mask, positions=positions, state=before)
            if after is not None:
                states.append(after)
            add_losses(losses, extra, names)
        x = x if self.norm is None else self.norm(x)
        return Hidden(x, None if state is None else ModelState(tuple(states), tail), losses)

    def _check(self, tokens: Tensor, key_mask: Tensor | None, positions: Tensor | None) -> None:
        if tokens.ndim != 2 or tokens.is_floating_point() or tokens.dtype == torch.bool:
            raise ShapeError(f"tokens must be integers (batch, length), got {tokens.dtype} {tuple(tokens.shape)}")
        if key_mask is not None and (key_mask.dtype != torch.bool or key_mask.shape != tokens.shape):
            raise ShapeError(
                f"key_mask must be bool {tuple(tokens.shape)}, True = real token, "
                f"got {key_mask.dtype} {tuple(key_mask.shape)}"
            )
        if positions is not None and not self.placed:
            raise UnsupportedError(
                "positions are for schemes that place each token (sinusoidal, learned, rotary); "
                f"position {self.config.position!r} knows distances between slots only"
            )
        if positions is not None and positions.shape not in (tokens.shape, tokens.shape[1:]):
            raise ShapeError(
                f"positions must be (length,) or (batch, length) as the tokens {tuple(tokens.shape)}, "
                f"got {tuple(positions.shape)}"
            )
        if torch.compiler.is_compiling() or not tokens.numel():
            return
        low, high = (int(x) for x in tokens.aminmax())
        if low < 0 or high >= self.config.vocab_size:
            raise InputError(
                f"token id {low if low < 0 else high} is out of range: this model has "
                f"vocab_size={self.config.vocab_size}, ids 0 to {self.config.vocab_size - 1}"
            )
