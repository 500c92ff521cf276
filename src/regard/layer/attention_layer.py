"""AttentionLayer: projections, positions and memory around any mechanism."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.catalog import build
from regard.core.attention import Attention, accumulation_dtype
from regard.core.errors import ConfigError, ShapeError, UnsupportedError, divisors
from regard.core.info import Heads
from regard.core.randomness import drawn_on_cpu
from regard.core.state import State
from regard.core.types_of import typed
from regard.layer.memories import check_memory, led, unread, written
from regard.layer.outputs import LayerOutput, LayerValues, Prepared, prepared
from regard.layer.positions import SLOTS_ONLY, check_position, placed, token_positions, turned
from regard.layer.projections import InputProjections, build_projections, check_hidden
from regard.memory import Memory, MemoryState, build_memory
from regard.memory.caches import Cache, build_cache
from regard.position import Position, build_position

_SERVED = ("count", "key_dim", "value_width", "query_width", "kv_heads", "causal", "max_length", "dropout")
"""what a shared mechanism must have been built for; its seed is its own"""


class AttentionLayer(nn.Module):
    """Multi-head attention with any mechanism: head_i = attention(x W^q_i, c W^k_i, c W^v_i), out = concat(head) W^o.

    Hidden states (batch, length, dim) go in and out. Only the projections that the mechanism reads exist; one that
    shares queries and keys has one for both. With a state, any split of a sequence gives what the whole gives.

    Args:
        dim: width of the hidden states.
        spec: the mechanism, such as `local(window=128)`, or a mix over heads, `local(window=64):4 + linear:4`; or a
            built mechanism, to share its weights between layers.
        heads: query heads.
        kv_heads: heads of keys and values; None: `heads`.
        key_dim, value_dim: width of a head; None: dim / heads.
        query_dim: width of a query head; None: that of a key. Others: for scores that compare different widths.
        position: a scheme such as `rotary`, or a module to share between layers; None: no positions.
        memory: such as `recent(length=128)`, or a `Memory`; None: none.
        context_dim: width of the source of a cross-attention layer; None: self-attention.
        causal: each position sees itself and earlier ones only, as in a decoder. Cross-attention layers are not causal.
        max_length: longest sequence in positions, for mechanisms and positions that need to know.
        dropout: probability of dropping an attention weight, in training.
        projections: `none`: queries, keys and values are the hidden states themselves, split into heads, and their
            averages are the output; only the mechanism and the position scheme have weights. `global`: the rows of
            global tokens have their own; `separate`: and their keys and values; `gated`: as a gated attention unit.
        bias: whether the projections have biases.
        output_bias: whether the output projection has one; None: as `bias`.
        output_l1: lambda of a loss in training, `losses["output_l1"]` = lambda sum |concat(head) W^o| over the real
            tokens of a call: add it to your objective as it is. For self-attention.
        return_state: False: a call gives the hidden states alone, a tensor, as `nn.Sequential` wants it.
        seed: of every initial weight.

    Raises:
        ConfigError: sizes that do not divide, unknown names or options, without projections anything that needs one.
        UnsupportedError: the mechanism cannot be causal, take the position scheme or read a memory.

    Example:
        >>> import torch
        >>> layer = AttentionLayer(32, "local(window=4)", heads=4, kv_heads=2, position="rotary", causal=True)
        >>> x = torch.randn(1, 10, 32)
        >>> first = layer(x[:, :7], state=layer.initial_state(batch=1))
        >>> rest = layer(x[:, 7:], state=first.state)
        >>> torch.allclose(torch.cat([first.hidden, rest.hidden], 1), layer(x).hidden, atol=1e-6)
        True
        >>> rest.state.nbytes  # 4 slots x 2 heads x (8 + 8) numbers of 4 bytes
        512

    Source: Vaswani et al. 2017, section 3.2.2.
    """

    @typed
    @drawn_on_cpu
    def __init__(
        self,
        dim: int,
        spec: str | Attention,
        *,
        heads: int,
        kv_heads: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        query_dim: int | None = None,
        position: str | Position | None = None,
        memory: str | Memory | None = None,
        context_dim: int | None = None,
        causal: bool = False,
        max_length: int | None = None,
        dropout: float = 0.0,
        projections: str = "all",
        bias: bool = False,
        output_bias: bool | None = None,
        output_l1: float = 0.0,
        return_state: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        counted = type(dim) is int and type(heads) is int and heads > 0
        if not counted or (dim % heads and (key_dim is None or value_dim is None)):
            more = divisors(dim) if counted else ""
            raise ConfigError(f"AttentionLayer: heads must divide dim, got dim={dim!r}, heads={heads!r}{more}")
        if causal and context_dim is not None:
            raise ConfigError("AttentionLayer: cross-attention (context_dim) is not causal; leave causal=True out")
        if not 0 <= output_l1 < float("inf") or (output_l1 and context_dim is not None):
            raise ConfigError(
                f"AttentionLayer: output_l1 is the weight of a loss, at least 0, got {output_l1}; 0 in cross-attention "
                "(context_dim), whose mask does not tell which outputs are padding"
            )
        self.dim, self.cross, self.return_state, self.output_l1 = dim, context_dim is not None, return_state, output_l1
        wanted = Heads(
            count=heads,
            key_dim=key_dim or dim // heads,
            value_dim=value_dim or dim // heads,
            query_dim=query_dim,
            kv_count=kv_heads,
            causal=causal,
            max_length=max_length,
            dropout=dropout,
            seed=seed,
        )
        self.attention = spec if isinstance(spec, Attention) else build(spec, wanted)
        if any(getattr(self.attention.heads, fact) != getattr(wanted, fact) for fact in _SERVED):
            raise ConfigError(f"the shared mechanism serves {self.attention.heads}, this layer needs {wanted}")
        self.heads, info = wanted, self.attention.info
        if self.cross and not info.supports.cross:
            self.attention.refuse("cross-attention (context_dim)", "cross")
        if info.shares_query_key and wanted.kv_heads != heads:
            raise ConfigError(f"{info.title} uses queries as keys, so kv_heads must equal heads={heads}")
        self.position = position if isinstance(position, Position | None) else build_position(position, wanted, dim)
        if self.position is not None:
            check_position(self.position, self.attention, wanted, dim, cross=self.cross)
        self.memory = memory if isinstance(memory, Memory | None) else build_memory(memory, wanted, dim)
        if self.memory is not None:
            check_memory(self.memory, self.attention, wanted)
        self.source_dim = source = dim if context_dim is None else context_dim
        output_bias = bias if output_bias is None else output_bias
        self.projections = build_projections(
            projections, self.attention, wanted, dim, source, bias=bias, output_bias=output_bias
        )
        self.inputs = InputProjections(self.attention, dim, source, seed)
        self.cache: Cache | None = None
        # Where other processes have the rest of the sequence: `regard.distributed.sequence.attended.SharedAttention`,
        # which positions and averages are left to.
        self.exchange: Any = None

    def cache_of(self, spec: str) -> Cache:
        """A policy for this layer's state, such as `h2o(budget=256)`; `layer.cache = ...` makes the layer ask it.

        Raises:
            ConfigError: an unknown policy or option.
            UnsupportedError: a cross-attention layer, one with a memory or with global tokens; a mechanism whose state
                is no list of slots.
        """
        if self.cross or self.memory is not None or self.projections.global_rows is not None:
            raise UnsupportedError("cache policies are for self-attention without a memory and without global tokens")
        return build_cache(spec, self.attention)

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """The state before the first position, by default on the device and in the dtype of the weights.

        Raises:
            UnsupportedError: the mechanism keeps no state, or the layer is not causal.
        """
        if not (self.cross or self.heads.causal):
            raise UnsupportedError("a state continues a decoder's layer, and this one is not causal: add causal=True")
        weight = next(self.parameters(), torch.empty(0))
        device, dtype = device or weight.device, dtype or weight.dtype
        if self.cache is not None:
            return self.cache.initial_state(self.attention, batch, device=device, dtype=dtype)
        return self.attention.initial_state(batch, device=device, dtype=dtype)

    def prepare(
        self, context: Float[Tensor, "batch keys context"], *, key_mask: Bool[Tensor, "batch keys"] | None = None
    ) -> State:
        """The state of a cross-attention source, computed once; pass it as `state` without a context.

        Raises:
            UnsupportedError: this is a self-attention layer.
        """
        if not self.cross:
            raise UnsupportedError("prepare is for cross-attention: build the layer with context_dim")
        check_hidden("context", context, self.source_dim)
        k, v = self.projections(context)
        if self.attention.info.supports.state:
            empty = context.new_zeros(context.shape[0], self.heads.count, 0, self.heads.query_width)
            start = self.initial_state(context.shape[0], device=context.device, dtype=v.dtype)
            inputs = self.inputs(self.attention, context[:, :0], context)
            state = self.attention(empty, k, v, key_mask=key_mask, inputs=inputs, state=start).state
            assert state is not None
            return state
        return Prepared({"k": k, "v": v, **({} if key_mask is None else {"key_mask": key_mask})}, k.shape[2])

    def remember(
        self,
        x: Float[Tensor, "batch length dim"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        marks: Int[Tensor, "batch length"] | None = None,
        state: State,
    ) -> State:
        """The state after `x`, whose averages nobody asks for: that of `forward`, at the price of keys and values.

        Raises:
            UnsupportedError: this is a cross-attention layer.
        """
        if self.cross:
            raise UnsupportedError("remember is for self-attention: what a cross-attention layer keeps is its source")
        past, scheme, attention = state.length, self.position, self.attention
        check_hidden("x", x, self.dim)
        if scheme is not None and scheme.absolute:
            x = placed(scheme, x, positions, past)
        k, v = self.projections(x)
        q = k.new_empty(k.shape[0], self.heads.count, 0, self.heads.query_width)
        if self.projections.global_rows is not None:
            k, v = self.projections.global_rows.columns(attention, x, k, v, key_mask=key_mask, marks=marks)
        if scheme is not None and scheme.transforms:
            _, at = token_positions(scheme, past, x.shape[1], x.shape[1], positions, x.device)
            q, k = scheme.transform(q, k, at[..., :0], at)
        if self.cache is not None:
            after = self.cache(attention, q, k, v, key_mask=key_mask, marks=marks, state=state).state
        else:
            inputs = self.inputs(attention, x[:, :0], x)
            after = attention(q, k, v, key_mask=key_mask, marks=marks, inputs=inputs, state=state).state
        assert after is not None
        return after

    def next_segment(self, memory: MemoryState) -> MemoryState:
        """The memory once the running segment is over, whose inputs waited while it was read with a state.

        The mechanism's state begins anew with the next segment. Losses belong to whole segments: here there are none.

        Raises:
            UnsupportedError: a layer without a memory.
        """
        if self.memory is None:
            raise UnsupportedError("next_segment is for a layer built with a memory")
        self.memory.check_state(memory)
        if not memory.waiting:
            return memory
        x, mask = memory["waiting"], memory.content.get("waiting_mask")
        return written(self.memory, memory.without_waiting(), self.projections, x, mask)[0]

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Float[Tensor, "batch keys context"] | None = None,
        *,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        marks: Int[Tensor, "batch keys"] | None = None,
        state: State | None = None,
        memory: MemoryState | None = None,
        query_start: int | None = None,
        counted: Bool[Tensor, "batch length"] | None = None,
    ) -> LayerOutput | Tensor:
        """Attend from `x` to itself, or to `context` in a cross-attention layer.

        Args:
            x: hidden states.
            context: the source of a cross-attention layer; None there: the source is in `state` (see `prepare`).
            key_mask: True = real, for the tokens of this call (of `context` in a cross-attention layer).
            positions: for absolute and rotary schemes, where each token of `x` is; None: slots, counting from the
                state's end. A left-padded row needs its own: only where the score is a function of q . k does rotating
                by slots give the same (not in additive, and not under feature maps).
            marks: labels of tokens, for mechanisms that declare a meaning.
            state: the past, from `initial_state`, `prepare` or an earlier call.
            memory: what earlier segments left, from `Memory.initial_state` or an earlier call. Without a state `x` is a
                whole segment; with one it goes on with a segment that ends at `next_segment`.
            query_start: in a cross-attention layer, how many queries came before.
            counted: the tokens whose queries count where a cache policy weighs; None: all.

        Raises:
            ShapeError: hidden states of another width; a context where none belongs, or none where one is needed.
            UnsupportedError: what the mechanism does not support.
        """
        given: dict[str, Any] = {"key_mask": key_mask, "positions": positions, "marks": marks, "counted": counted}
        got = self.values(x, context, **given, state=state, memory=memory, query_start=query_start)
        hidden, losses = self.output(got.values, x), got.losses
        if self.training and self.output_l1:
            real = hidden if key_mask is None else hidden.masked_fill(~key_mask[..., None], 0)
            losses["output_l1"] = self.output_l1 * real.abs().sum(dtype=accumulation_dtype(real.dtype))
        answer = LayerOutput(hidden, got.state, got.memory, losses)
        return answer if self.return_state else answer.alone

    def output(
        self, values: Float[Tensor, "batch heads length value"], x: Float[Tensor, "batch length dim"]
    ) -> Float[Tensor, "batch length dim"]:
        """The output projection of averages; `x` are the inputs that they belong to."""
        return self.projections.joined(values, x)

    def values(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Float[Tensor, "batch keys context"] | None = None,
        *,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        marks: Int[Tensor, "batch keys"] | None = None,
        state: State | None = None,
        memory: MemoryState | None = None,
        query_start: int | None = None,
        counted: Bool[Tensor, "batch length"] | None = None,
    ) -> LayerValues:
        """The averages of every head, before the output projection; arguments and errors as `forward`."""
        check_hidden("x", x, self.dim, state)
        past, length, exchange = state.length if state is not None and not self.cross else 0, x.shape[1], self.exchange
        if exchange is not None:
            past = exchange.begun(state=state, memory=memory, marks=marks, context=context)
        scheme, attention, projections = self.position, self.attention, self.projections
        if scheme is not None and scheme.absolute:
            x = placed(scheme, x, positions, past if memory is None else memory.waiting)
        source, keep = self._source(x, context, key_mask, state, memory)
        inputs: Mapping[str, Tensor] = {}
        if source is None:
            q = projections.queries(x)
            k, v, keep, state = prepared(self.heads, q, state)
            if attention.info.inputs:
                inputs = self.inputs(attention, x, x[:, :0])
        else:
            q, k, v = projections.of(x, source)
            if attention.info.inputs:
                inputs = self.inputs(attention, x, source)
        if exchange is not None:
            got = exchange.attended(attention, scheme, q, k, v, key_mask=keep, positions=positions, inputs=inputs)
            return LayerValues(got.values, None, None, dict(got.losses))
        rows, bias, key_positions, projected = projections.global_rows, None, None, (q, k, v)
        if rows is not None:
            k, v = rows.columns(attention, x, k, v, key_mask=keep, marks=marks)
        if scheme is not None and (scheme.transforms or scheme.biased):
            keys = k.shape[2]
            if scheme.biased:  # a marked token may be seen from anywhere
                distances = attention.bias_distances if marks is None else partial(Attention.bias_distances, attention)
                bias = scheme.bias(q, *distances(length, keys, state))
            if scheme.transforms:
                q, k, key_positions = turned(scheme, q, k, past, positions, unread(self.memory, memory))
            elif positions is not None and keys != length:
                raise UnsupportedError(SLOTS_ONLY)
        start = query_start or 0 if self.cross else query_start  # queries of a source are none of its tokens
        if self.cache is not None:
            given = {"key_mask": keep, "bias": bias, "marks": marks, "state": state}
            got = self.cache(attention, q, k, v, **given, counted=counted)
        else:
            given = {"key_mask": keep, "bias": bias, "marks": marks, "inputs": inputs}
            got = attention(q, k, v, **given, query_start=start, state=state)
        values, losses = got.values, dict(got.losses)
        if rows is not None:
            where = {"position": scheme, "key_positions": key_positions}
            values = rows(attention, x, values, key_mask=keep, marks=marks, **where)
        if memory is not None:
            assert self.memory is not None
            if self.memory.searched:
                values = self.memory.read(projected[0], values, memory.without_waiting())
            if state is not None:
                memory = memory.wait(x, key_mask)
            else:
                memory, more = written(self.memory, memory, projections, x, key_mask, projected)
                losses.update(more)
        return LayerValues(values, got.state, memory, losses)

    def _source(
        self,
        x: Tensor,
        context: Tensor | None,
        key_mask: Tensor | None,
        state: State | None,
        memory: MemoryState | None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Where keys come from, and their mask."""
        if self.cross:
            if memory is not None:
                raise ShapeError("a cross-attention layer has no memory")
            if context is None and state is None:
                raise ShapeError("a cross-attention layer needs a context, or a state from `prepare`")
            if context is not None:
                check_hidden("context", context, self.source_dim)
            return context, key_mask
        if context is not None:
            raise ShapeError("a self-attention layer takes no context; build it with context_dim for cross-attention")
        if memory is None:
            return x, key_mask
        if self.memory is None:
            raise UnsupportedError("a memory needs a layer built with one")
        self.memory.check_state(memory)
        if memory.waiting and state is None:
            raise ShapeError("a segment is running: go on with its state, or end it with next_segment")
        if state is not None and state.length:
            return x, key_mask
        return led(self.memory, memory, x, key_mask)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, cross={self.cross}"
