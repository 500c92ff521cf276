"""The encoder-decoder: a causal decoder whose every block also reads an encoded source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.catalog import describe
from regard.core.attention import Attention, generator
from regard.core.composite import States
from regard.core.errors import UnsupportedError
from regard.core.randomness import drawn_on_cpu
from regard.core.state import State
from regard.core.types_of import typed
from regard.layer import AttentionLayer, linear
from regard.models.block_config import Recomputed
from regard.models.embeddings import Embeddings, build_attention, check_mask, token_table, with_usual_logits
from regard.models.encoder import Encoded, Encoder
from regard.models.encoder_decoder_config import EncoderDecoderConfig
from regard.models.losses import add_losses, loss_names, loss_weights
from regard.models.parts import Mlp, build_norm, in_pieces
from regard.models.recompute import recomputed
from regard.models.sharing import save_once, share_between_layers
from regard.position import Position


@dataclass(frozen=True)
class EncoderDecoderState(States):
    """The decoder's past, `layers`, and the prepared source of every layer, `sources`, which stays as it is."""

    aligned: ClassVar[bool] = False

    @classmethod
    def of(cls, layers: Sequence[State], sources: Sequence[State]) -> Self:
        """From the states of every block."""
        numbered = (States({str(at): part for at, part in enumerate(parts)}) for parts in (layers, sources))
        return cls(dict(zip(("layers", "sources"), numbered, strict=True)))

    def layer(self, at: int) -> State:
        """The past of a block."""
        return cast(States, self.parts["layers"])[str(at)]

    @property
    def sources(self) -> list[State]:
        """The prepared source of every block."""
        return list(cast(States, self.parts["sources"]).parts.values())

    def rewind(self, count: int) -> Self:
        """The decoder's past before its newest `count` slots; the source stays."""
        return type(self)({**self.parts, "layers": self.parts["layers"].rewind(count)})


class EncoderDecoderOutput(NamedTuple):
    """logits: (batch, length, vocab_size). state: from `decode`. losses: in training only, unweighted."""

    logits: Tensor
    state: EncoderDecoderState | None
    losses: dict[str, Tensor]


class Crossed(NamedTuple):
    """hidden: (batch, length, dim). state: of the attention to itself. losses and cross_losses: of each attention."""

    hidden: Tensor
    state: State | None
    losses: dict[str, Tensor]
    cross_losses: dict[str, Tensor]


class CrossBlock(nn.Module):
    """One layer of the decoder: attention to itself, attention to the source, an MLP.

    Each has a residual connection and a norm, pre-norm x + f(norm(x)) or post-norm norm(x + f(x)). `position`: as in
    `Block`.

    Args:
        config: shape of the model.
        attention: to itself, causal.
        cross: to the source.
        seed: of the MLP's initial weights.

    Source: Vaswani et al. 2017, section 3.1.
    """

    @typed
    @drawn_on_cpu
    def __init__(
        self, config: EncoderDecoderConfig, attention: AttentionLayer, cross: AttentionLayer, *, seed: int
    ) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.checkpoint: Recomputed = config.checkpoint
        self.mlp_chunks = config.mlp_chunks
        self.attention, self.cross = attention, cross
        self.position: Position | None = None
        self.attention_norm, self.cross_norm = self._norm(config), self._norm(config)
        # As in `Block`: the variance of the residual stream does not grow with the 3 branches of each layer.
        scale = (3 * config.layers) ** -0.5 if self.pre else 1.0
        with torch.no_grad():
            attention.projections.output.weight.mul_(scale)
            cross.projections.output.weight.mul_(scale)
        self.mlp: Mlp | None = None
        if config.mlp != "none":
            draw = generator(seed, "mlp")
            self.mlp = Mlp(config.dim, config.mlp_width, config.mlp, bias=config.bias, draw=draw, scale=scale)
            self.mlp_norm = self._norm(config)
        self.dropout = nn.Dropout(config.dropout)

    @property
    def called(self) -> bool:
        """Whether its weights are read in calls of it alone, but for what is prepared for decoding."""
        return self.attention.memory is None and self.cross.memory is None

    @staticmethod
    def _norm(config: EncoderDecoderConfig) -> nn.Module:
        return build_norm(config.norm_kind, config.dim, bias=config.bias, eps=config.norm_eps)

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        source: Float[Tensor, "batch keys dim"] | None = None,
        *,
        source_mask: Bool[Tensor, "batch keys"] | None = None,
        prepared: State | None = None,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        query_start: int | None = None,
        state: State | None = None,
    ) -> Crossed:
        """The hidden states after this block, from a source or from a prepared one; `query_start` came before."""
        if self.position is not None:
            assert positions is not None
            x = self.position.embed(x, positions)
        own = {"key_mask": key_mask, "positions": positions}
        crossed = {"key_mask": source_mask, "query_start": query_start}
        call = partial(self._run, own=own, crossed=crossed, prepared=prepared)
        return recomputed(self.checkpoint == "block", call, x, source, module=self, state=state)

    def _run(
        self,
        x: Tensor,
        source: Tensor | None,
        *,
        own: Mapping[str, Any],
        crossed: Mapping[str, Any],
        prepared: State | None,
        state: State | None,
    ) -> Crossed:
        again = self.checkpoint == "attention"
        inner = self._entering(x, self.attention_norm)
        output = recomputed(again, partial(self.attention, **own), inner, module=self, state=state)
        x = self._joined(x, output.hidden, self.attention_norm)
        inner = self._entering(x, self.cross_norm)
        read = recomputed(again, partial(self.cross, **crossed), inner, source, module=self, state=prepared)
        x = self._joined(x, read.hidden, self.cross_norm)
        if self.mlp is not None:
            branch = in_pieces(self.mlp, self._entering(x, self.mlp_norm), self.mlp_chunks)
            x = self._joined(x, branch, self.mlp_norm)
        return Crossed(x, output.state, output.losses, read.losses)

    def _entering(self, x: Tensor, norm: nn.Module) -> Tensor:
        return norm(x) if self.pre else x

    def _joined(self, x: Tensor, branch: Tensor, norm: nn.Module) -> Tensor:
        x = x + self.dropout(branch)
        return x if self.pre else norm(x)


class EncoderDecoder(nn.Module):
    """p(y_t | y_1 ... y_{t-1}, source) = softmax(E (scale decoder(y; encoder(source))) + b).

    Each layer's keys and values of the source are computed once (`prepare`), and `decode` then streams. The encoder
    and the decoder have position schemes of their own; relative ones are shared by their layers, and attention to the
    source has none. Losses of the three kinds of attention are named encoder.*, decoder.* and cross.*.

    Args:
        config: the shape.

    Raises:
        ConfigError: an unknown mechanism, position or option.
        UnsupportedError: a mechanism that cannot be causal, or read a source, or take the position scheme.

    Example:
        >>> import torch
        >>> model = EncoderDecoder(EncoderDecoderConfig(dim=32)).eval()
        >>> source, tokens = torch.tensor([[72, 101, 108, 108]]), torch.tensor([[0, 5]])
        >>> decoded = model.decode(tokens, model.prepare(source))
        >>> torch.allclose(decoded.logits, model(source, tokens).logits, atol=1e-5)
        True

    Source: Vaswani et al. 2017, section 3.
    """

    @typed
    @drawn_on_cpu
    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.config = config
        # Tied to a scaled output layer (T5), embeddings are larger, so that the first logits are not.
        scale = 1 / config.logit_scale if config.tied else 1.0
        table = token_table(config.vocab_size, config.dim, seed=config.seed, scale=scale)
        seed = generator(config.seed, "decoder").initial_seed()
        self.embeddings = Embeddings(config, causal=True, table=table, seed=seed)
        self.encoder = Encoder(config.encoder, table=table if config.source_vocab_size is None else None)
        specs = zip(config.specs, config.cross_specs, strict=True)
        self.blocks = nn.ModuleList(self._block(at, *spec) for at, spec in enumerate(specs))
        share_between_layers(self.mechanisms)
        share_between_layers(self.cross_mechanisms)
        self.norm: nn.Module | None = None
        if config.norm == "pre":
            self.norm = build_norm(config.norm_kind, config.dim, bias=config.bias, eps=config.norm_eps)
        self.output: nn.Linear | None = None
        rows = config.targets or config.vocab_size
        if not config.tied:
            draw = generator(config.seed, "output")
            self.output = linear(config.dim, rows, bias=False, draw=draw)
        self.bias = nn.Parameter(torch.zeros(rows)) if config.output_bias else None
        blocks = [cast(CrossBlock, block) for block in self.blocks]
        of_kinds = {"decoder": [block.attention for block in blocks], "cross": [block.cross for block in blocks]}
        self.loss_names, self.cross_loss_names = (loss_names(layers) for layers in of_kinds.values())
        kinds = {"encoder": self.encoder.loss_weights}
        kinds |= {kind: loss_weights(layers) for kind, layers in of_kinds.items()}
        self.loss_weights = {f"{kind}.{name}": x for kind, weights in kinds.items() for name, x in weights.items()}
        save_once(self)

    def _block(self, at: int, spec: str, cross_spec: str) -> CrossBlock:
        config = self.config
        if describe(cross_spec).mixes_queries:
            raise UnsupportedError(
                f"{cross_spec} in the cross-attention of a decoder would show a token what later ones ask: its outputs "
                "depend on other queries; it serves encoders"
            )
        seed, cross_seed = (generator(config.seed, f"{kind} layer", at).initial_seed() for kind in ("decoder", "cross"))
        attention = build_attention(config, spec, causal=True, position=self.embeddings.relative, seed=seed)
        cross = build_attention(config, cross_spec, causal=False, context_dim=config.dim, seed=cross_seed)
        block = CrossBlock(config, *(with_usual_logits(layer, config) for layer in (attention, cross)), seed=seed)
        block.position = self.embeddings.of_block(at)
        return block

    @property
    def mechanisms(self) -> list[Attention]:
        """The decoder's attention to itself, layer by layer."""
        return [cast(CrossBlock, block).attention.attention for block in self.blocks]

    @property
    def cross_mechanisms(self) -> list[Attention]:
        """The decoder's attention to the source, layer by layer."""
        return [cast(CrossBlock, block).cross.attention for block in self.blocks]

    @property
    def streams(self) -> bool:
        """Whether every layer of the decoder keeps a state, so that `prepare` works."""
        return all(mechanism.info.supports.state for mechanism in self.mechanisms)

    @property
    def pads(self) -> bool:
        """Whether sources of unequal length may share a batch by right padding."""
        return all(m.info.supports.key_mask for m in (*self.encoder.mechanisms, *self.cross_mechanisms))

    def parameter_count(self) -> int:
        """Trained weights, shared ones once."""
        return sum(x.numel() for x in self.parameters())

    def shift(self, targets: Int[Tensor, "batch length"]) -> Int[Tensor, "batch length"]:
        """The decoder's input to predict `targets`: the start token, then all but the last.

        Negative targets, which do not count, are read as the start token.
        """
        start = targets.new_full((len(targets), 1), self.config.start_token)
        before = targets[:, :-1]
        return torch.cat([start, before.masked_fill(before < 0, self.config.start_token)], 1)

    def prepare(
        self,
        source: Int[Tensor, "batch keys"],
        *,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
        marks: Int[Tensor, "batch keys"] | None = None,
    ) -> EncoderDecoderState:
        """Encode a source and compute every layer's keys and values of it: the state before the first token.

        Args:
            source, key_mask, marks: as `Encoder.forward`.

        Raises:
            UnsupportedError: a mechanism of the decoder keeps no state; marks that the encoder has no meaning for.
        """
        encoded = self.encoder(source, key_mask=key_mask, marks=marks)
        blocks = [cast(CrossBlock, block) for block in self.blocks]
        batch, device, dtype = len(source), encoded.hidden.device, encoded.hidden.dtype
        return EncoderDecoderState.of(
            tuple(block.attention.initial_state(batch, device=device, dtype=dtype) for block in blocks),
            tuple(block.cross.prepare(encoded.hidden, key_mask=encoded.key_mask) for block in blocks),
        )

    def decode(self, tokens: Int[Tensor, "batch length"], state: EncoderDecoderState) -> EncoderDecoderOutput:
        """Logits after each of these tokens, which follow those that the state has read; any split gives the same."""
        return self._decoded(tokens, None, None, state)

    def forward(
        self,
        source: Int[Tensor, "batch keys"],
        tokens: Int[Tensor, "batch length"],
        *,
        source_mask: Bool[Tensor, "batch keys"] | None = None,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        source_marks: Int[Tensor, "batch keys"] | None = None,
    ) -> EncoderDecoderOutput:
        """Logits of the next token at every position of `tokens`, all at once.

        Args:
            source: ids that the encoder reads.
            tokens: ids that the decoder reads, from the start token on (see `shift`).
            source_mask: True = real; masked ones influence nothing.
            key_mask: the same for `tokens`.
            source_marks: labels of the source's tokens, as `Encoder.forward`.

        Raises:
            ShapeError, InputError: ids of the wrong shape or out of range.
            LimitError: longer than `max_length` where weights depend on it.
            UnsupportedError: a request that a mechanism does not support.
        """
        encoded = self.encoder(source, key_mask=source_mask, marks=source_marks)
        output = self._decoded(tokens, encoded, key_mask, None)
        losses = {f"encoder.{name}": x for name, x in encoded.losses.items()}
        return EncoderDecoderOutput(output.logits, output.state, {**losses, **output.losses})

    def _decoded(
        self, tokens: Tensor, encoded: Encoded | None, key_mask: Tensor | None, state: EncoderDecoderState | None
    ) -> EncoderDecoderOutput:
        check_mask(key_mask, tokens)
        past = 0 if state is None else state.length
        x = self.embeddings(tokens, past=past)
        positions = self.embeddings.for_blocks(x, None, past)
        states: list[State] = []
        sources = None if state is None else state.sources
        losses: dict[str, dict[str, Tensor]] = {"decoder": {}, "cross": {}}
        for at, block in enumerate(self.blocks):
            output = block(
                x,
                None if encoded is None else encoded.hidden,
                source_mask=None if encoded is None else encoded.key_mask,
                prepared=None if sources is None else sources[at],
                key_mask=key_mask,
                positions=positions,
                query_start=None if state is None else state.length,
                state=None if state is None else state.layer(at),
            )
            x = output.hidden
            if output.state is not None:
                states.append(output.state)
            add_losses(losses["decoder"], output.losses, self.loss_names[at])
            add_losses(losses["cross"], output.cross_losses, self.cross_loss_names[at])
        x = x if self.norm is None else self.norm(x)
        named = {f"{kind}.{name}": loss for kind, of_kind in losses.items() for name, loss in of_kind.items()}
        after = None if sources is None else EncoderDecoderState.of(states, sources)
        return EncoderDecoderOutput(self.logits(x), after, named)

    def logits(self, hidden: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows vocab"]:
        """The output layer alone."""
        table = cast(nn.Embedding, self.embeddings.table).weight if self.output is None else self.output.weight
        return nn.functional.linear(hidden * self.config.logit_scale, table, self.bias)
