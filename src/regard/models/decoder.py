"""The causal decoder language model: embeddings, blocks, output layer, and its state."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Self, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.catalog import build
from regard.core.attention import generator
from regard.core.errors import ConfigError, ShapeError, UnsupportedError, kind_of
from regard.core.randomness import drawn_on_cpu
from regard.core.state import State
from regard.core.types_of import typed
from regard.layer import linear
from regard.models.blocks import Block, block_class
from regard.models.config import ModelConfig
from regard.models.depth import Tokens
from regard.models.depth_arguments import arguments
from regard.models.embeddings import Embeddings, build_attention, check_mask
from regard.models.model_state import ModelState
from regard.models.neighbours import NeighbourGate, NeighbourTokens, given
from regard.models.output import Hidden, ModelOutput
from regard.models.parts import ShortConvolution
from regard.models.sharing import save_once
from regard.models.stack import Stack

PACKED = "this model has weights of 8 bits, which are for inference alone: {}; load it again without weights=int8"


class LanguageModel(Stack):
    """p(x_{t+1} | x_1 ... x_t) = softmax(E norm(block_L(... block_1(E^T x + position)))).

    Weights, with V = vocab_size, D = dim, M = the MLP's width, r = kv_heads / heads, for mechanisms that have none of
    their own and read q, k and v:

        V D (2 V D untied) + layers * (2 D^2 (1 + r) + m D M + norms) + final norm (+ max_length D, learned positions;
        per layer: layers max_length D)

    where m = 2, or 3 for a gated unit; with `head_dim`, heads head_dim stands for one D of D^2. A norm has D weights.
    With `bias`: D more per LayerNorm, and one per output of every linear layer but the last; with `neighbours`: D more.
    The layers' auxiliary losses of one name are added up: each acts on its own layer as it would alone. Absolute
    positions are added to the embeddings, those of `learned(per_layer=True)` to what enters each layer; a relative
    scheme is one module that all layers share.

    Args:
        config: the shape.

    Raises:
        ConfigError: an unknown mechanism, position or option; a memory beside one whose weights or buckets are for
            `max_length` positions, which is one segment.
        UnsupportedError: a mechanism that cannot be causal, or take the position scheme, the memory or the dropout.

    Example:
        >>> import torch
        >>> model = LanguageModel(ModelConfig(dim=32, attention=("linear", "softmax"))).eval()
        >>> tokens = torch.tensor([[72, 101, 108, 108, 111]])
        >>> first = model(tokens[:, :3], state=model.initial_state(1))
        >>> then = model(tokens[:, 3:], state=first.state)
        >>> torch.allclose(then.logits, model(tokens).logits[:, 3:], atol=1e-5)
        True

    Source: Vaswani et al. 2017, section 3 (decoder); initial weights as GPT-2 (Radford et al. 2019), by width: normal,
    variance 1 / inputs, residual outputs shrunk by 1/sqrt(2 layers), embeddings 0.02 at dim 768.
    """

    packed: bool = False
    """whether its weights are of 8 bits, see `regard.models.packed`"""

    @typed
    @drawn_on_cpu
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config, causal=True, seed=config.seed)
        self.convolution: ShortConvolution | None = None
        if config.short_convolution:
            taps = generator(config.seed, "convolution")
            self.convolution = ShortConvolution(config.dim, config.short_convolution, draw=taps)
        width = 2 * config.dim if config.both_streams else config.dim
        self._stack(config, (self._block(at, spec) for at, spec in enumerate(config.specs)), width=width)
        self.output: nn.Linear | None = None
        if not config.tied:
            draw, outputs = generator(config.seed, "output"), config.targets or config.vocab_size
            self.output = linear(width, outputs, bias=config.output_bias, draw=draw)
        self.mixture = NeighbourGate(config) if config.neighbours else None
        if config.remembers and self._sized is not None:
            raise ConfigError(
                f"memory={config.memory!r} puts earlier segments before one of max_length={config.max_length} "
                f"positions, and {self._sized} is built for that many and no more; leave the memory out, or use one "
                "for any length (positions: rotary, alibi, transformer_xl; attention: softmax, local, linear)"
            )
        save_once(self)

    def train(self, mode: bool = True) -> Self:
        """As torch's; of a packed model nothing is changed before it is refused.

        Raises:
            UnsupportedError: training of a packed model.
        """
        if mode and self.packed:
            raise UnsupportedError(PACKED.format("they cannot be trained"))
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        if self.packed and fn(torch.empty(0)).device.type != "cpu":
            raise UnsupportedError(PACKED.format("they stay on the CPU"))
        return super()._apply(fn, recurse)

    def _block(self, at: int, spec: str) -> Block:
        config = self.config
        seed = generator(config.seed, "layer", at).initial_seed()
        memory = config.memories[at]
        relative = self.embeddings.relative
        kind = block_class(config.block)
        attention = build_attention(config, spec, causal=True, position=relative, memory=memory, block=kind, seed=seed)
        block = kind(config, attention, seed=seed)
        block.position = self.embeddings.of_block(at)
        return block

    @property
    def table(self) -> nn.Embedding:
        """The embeddings of the tokens."""
        return cast(nn.Embedding, self.embeddings.table)

    @property
    def streams(self) -> bool:
        """Whether every layer keeps a state, so that `initial_state` works."""
        return all(mechanism.info.supports.state for mechanism in self.mechanisms)

    @property
    def pads(self) -> bool:
        """Whether rows of unequal length may share a batch by left padding: no pattern or segment depends on slots."""
        if self.config.remembers:
            return False
        caches = [layer.cache for layer in self.layers]
        if any(cache is not None and not cache.pads for cache in caches):
            return False
        return all(m.info.supports.key_mask and not m.info.anchored for m in self.mechanisms)

    @property
    def reads_targets(self) -> bool:
        """Whether a call learns from targets that are not the next tokens."""
        return self.training and self.depth.learns

    @property
    def limit(self) -> int | None:
        """Longest sequence, `max_length` where a weight or a bucket depends on it; None: any."""
        return None if self._sized is None else self.config.max_length

    @cached_property
    def _sized(self) -> str | None:
        """The position scheme or the mechanism that has a weight or a bucket for every one of `max_length` positions.

        A mechanism that depends on it refuses to be built without it (see `Heads`).
        """
        position = self.embeddings.position
        if position is not None and position.sized:
            return f"position {self.config.position}"
        for spec, mechanism in zip(self.config.specs, self.mechanisms, strict=True):
            try:
                build(spec, replace(mechanism.heads, max_length=None))
            except ConfigError:
                return f"attention {spec}"
        return None

    def reduce_cache(self, spec: str | None) -> None:
        """Let a policy decide what the states of every layer keep, such as `h2o(budget=256)`; None: no policy.

        Calls without a state compute what calls with one do. Weights stay as they are, and so do saved runs.

        Raises:
            ConfigError: an unknown policy or option.
            UnsupportedError: a layer whose state is no list of slots, or a model with a memory.
        """
        caches = [None if spec is None else layer.cache_of(spec) for layer in self.layers]
        for layer, cache in zip(self.layers, caches, strict=True):
            layer.cache = cache if cache is None else cache.train(self.training)

    @typed
    def initial_state(
        self,
        batch: int,
        *,
        segments: bool = False,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> ModelState:
        """The state before the first token, by default on the device and in the dtype of the weights.

        Args:
            batch: rows.
            segments: of a model with a memory: every call ends its last segment; mechanisms keep nothing, as in
                training.
            device, dtype: of the state.

        Raises:
            UnsupportedError: a mechanism without a state; `segments` without a memory.
        """
        weight = self.table.weight
        place = {"device": device or weight.device, "dtype": dtype or weight.dtype}
        if segments and not self.config.remembers:
            raise UnsupportedError("segments are for a model with a memory, such as memory='recent(length=256)'")
        layers: list[State | None] = [None] * len(self.blocks)
        if not segments:
            layers = list(self.depth.initial_state([cast(Block, block) for block in self.blocks], batch, **place))
        memories = [
            None if layer.memory is None else layer.memory.initial_state(batch, **place) for layer in self.layers
        ]
        convolution = None if self.convolution is None else self.convolution.initial_state(batch, **place)
        return ModelState.of(layers, memories, convolution)

    def next_segment(self, state: ModelState) -> ModelState:
        """The state once the running segment is over: what it brought is in the memories, mechanisms begin anew.

        Raises:
            UnsupportedError: a model without a memory.
        """
        _, memories = state.threads(len(self.blocks))
        after = [None if m is None else layer.next_segment(m) for layer, m in zip(self.layers, memories, strict=True)]
        first = next(x for memory in after if memory is not None for x in memory.tensors().values())
        place = {"device": first.device, "dtype": first.dtype}
        layers = [layer.initial_state(len(first), **place) for layer in self.layers]
        return ModelState.of(layers, after, state.convolution)

    def forget(self, state: ModelState, rows: Bool[Tensor, " batch"]) -> ModelState:
        """The state in which these rows have read nothing, as where a document ends and another one begins.

        Slots are shared by the batch, so `state.length` stays, and absolute positions go on.

        Raises:
            UnsupportedError: a model without a memory, or in the middle of a segment that mechanisms keep.
        """
        if not self.config.remembers or state.running:
            raise UnsupportedError(
                f"rows are forgotten between segments of a model with a memory, not after {state.running} tokens of "
                "one; read with segments=True, or go on to the segment's end"
            )
        states, memories = state.threads(len(self.blocks))
        kept = [
            None if memory is None or layer.memory is None else layer.memory.forget(memory, rows)
            for layer, memory in zip(self.layers, memories, strict=True)
        ]
        tail = state.convolution
        return ModelState.of(
            states, kept, None if tail is None else tail.map(lambda x: x.masked_fill(rows[:, None, None], 0))
        )

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        state: ModelState | None = None,
        neighbours: NeighbourTokens | None = None,
        targets: Int[Tensor, "batch length"] | None = None,
        depths: Int[Tensor, "batch length"] | None = None,
    ) -> ModelOutput:
        """Logits of the next token at every position.

        A model with a memory reads `max_length` tokens at a time: each such segment sees itself and what the memories
        have of earlier ones, to which no gradient flows. Any split of a text with a state gives the same.

        Args:
            tokens: ids below `vocab_size`.
            key_mask: True = real token; masked ones influence no other position.
            positions: for absolute and rotary schemes, where each token is (left-padded rows start late); None: slots,
                counting from the state's end.
            state: the past, from `initial_state` or an earlier call.
            neighbours: of every position, for a model that mixes them in (`config.neighbours`).
            targets, depths: for the depth, as `regard.models.depth_arguments.arguments`.

        Raises:
            InputError: a token id out of range (not checked inside `torch.compile`).
            ShapeError: tokens or a mask of the wrong shape or dtype.
            LimitError: longer than `max_length` where weights depend on it.
            UnsupportedError: positions for a scheme of distances, or what a mechanism does not support.
        """
        of_tokens = {"key_mask": key_mask, "positions": positions, "targets": targets, "depths": depths}
        got = self.hidden(tokens, state=state, neighbours=neighbours, **of_tokens)
        return ModelOutput(self.logits(got.hidden), got.state, got.losses, got.steps)

    def logits(self, hidden: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows vocab"]:
        """The output layer alone."""
        return nn.functional.linear(hidden, self.table.weight) if self.output is None else self.output(hidden)

    def hidden(
        self,
        tokens: Int[Tensor, "batch length"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        state: ModelState | None = None,
        neighbours: NeighbourTokens | None = None,
        targets: Int[Tensor, "batch length"] | None = None,
        depths: Int[Tensor, "batch length"] | None = None,
    ) -> Hidden:
        """All but the output layer; arguments and errors as `forward`."""
        self.embeddings.check(tokens, positions=positions)
        check_mask(key_mask, tokens)
        if state is not None and not isinstance(state, ModelState):
            raise ShapeError(f"state must be one that initial_state or a call gave, got {kind_of(state)}")
        neighbours = given(self.mixture, neighbours, tokens)
        told = arguments(self.depth, self.config, tokens, key_mask, targets, depths, self._readout)
        read = self._segments if self.config.remembers else self._segment
        got = read(tokens, key_mask, positions, state, told)
        if self.mixture is None or neighbours is None:
            return got
        return got._replace(hidden=self.mixture(got.hidden, self.table.weight, neighbours))

    def _segments(
        self,
        tokens: Tensor,
        key_mask: Tensor | None,
        positions: Tensor | None,
        state: ModelState | None,
        told: Mapping[str, Any],
    ) -> Hidden:
        """Segments of `max_length` tokens, one after the other; the running one goes on and ends when it is full."""
        if positions is not None:
            raise UnsupportedError("a model with a memory counts slots; leave positions out, or pad on the right")
        streaming, size = state is not None and state.streaming, self.config.max_length
        past = state or self.initial_state(len(tokens), segments=True)
        parts: list[Tensor] = []
        losses: dict[str, list[Tensor]] = {}
        first = 0
        while first < tokens.shape[1] or not parts:
            cut = slice(first, first + size - past.running)
            mask = None if key_mask is None else key_mask[:, cut]
            hidden, after, more, *_ = self._segment(tokens[:, cut], mask, None, past, told)
            assert after is not None
            past = self.next_segment(after) if streaming and after.running == size else after
            parts.append(hidden)
            for name, loss in more.items():
                losses.setdefault(name, []).append(loss)
            first = cut.stop
        means = {name: torch.stack(values).mean() for name, values in losses.items()}
        return Hidden(torch.cat(parts, 1), None if state is None else past, means)

    def _segment(
        self,
        tokens: Tensor,
        key_mask: Tensor | None,
        positions: Tensor | None,
        state: ModelState | None,
        told: Mapping[str, Any],
    ) -> Hidden:
        x, past, tail = self.embeddings.content(tokens), 0 if state is None else state.length, None
        if self.convolution is not None:
            x, tail = self.convolution(x, key_mask, None if state is None else state.convolution)
        x = self.embeddings.placed_at(x, positions, past)
        positions = self.embeddings.for_blocks(x, positions, past)
        threads = None if state is None else state.threads(len(self.blocks))
        looped, losses = self._looped(x, threads, Tokens(key_mask, positions), **told)
        after = None if state is None else ModelState.of(looped.states, looped.memories, tail)
        return Hidden(looped.hidden, after, losses, looped.steps, self.depth.each)

    def _readout(self, hidden: Tensor) -> Tensor:
        """The logits of hidden states that have not passed the last norm."""
        return self.logits(self._normed(hidden))
