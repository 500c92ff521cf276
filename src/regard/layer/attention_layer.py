"""AttentionLayer: projections, positions and memory around any mechanism."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.catalog import build
from regard.core import Attention, generator
from regard.errors import ConfigError, ShapeError, UnsupportedError
from regard.info import Heads
from regard.layer.global_rows import GlobalRows
from regard.memory import Memory, build_memory
from regard.position import Position, build_position
from regard.state import State

__all__ = ["AttentionLayer", "LayerOutput", "Prepared", "linear"]


_SERVED = ("count", "key_dim", "value_width", "query_width", "kv_heads", "causal", "max_length", "dropout")
"""what a shared mechanism must have been built for; its seed is its own"""


PROJECTIONS = ("all", "none", "global", "separate")

_SLOTS_ONLY = "a memory has slots only; leave positions out"


class LayerOutput(NamedTuple):
    """hidden: (batch, length, dim). state and memory: only if they were passed. losses: as `Attended.losses`."""

    hidden: Tensor
    state: State | None
    memory: Tensor | None
    losses: dict[str, Tensor]


@dataclass(frozen=True)
class Prepared(State):
    """The projected keys and values of a source, for mechanisms that keep no state of their own."""

    content: Mapping[str, Tensor]
    length: int

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.content)

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "Prepared":
        return Prepared(dict(tensors), self.length)

    def load(self, tensors: Mapping[str, Tensor]) -> "Prepared":
        return Prepared({name: x for name, x in tensors.items() if name != "length"}, int(tensors["length"]))


class AttentionLayer(nn.Module):
    """Multi-head attention with any mechanism: head_i = attention(x W^q_i, c W^k_i, c W^v_i), out = concat(head) W^o.

    Only the projections that the mechanism reads exist; a mechanism that shares queries and keys has one for both.

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
        causal: each position sees itself and earlier ones only. Cross-attention layers are not causal.
        max_length: longest sequence, for mechanisms and positions that need to know.
        dropout: of attention weights, in training.
        projections: `none`: queries, keys and values are the hidden states themselves, split into heads, and their
            averages are the output. What weights remain are the mechanism's and the position scheme's. `global`: the
            rows of global tokens have their own; `separate`: and global tokens have keys and values of their own.
        bias: whether the projections have biases.
        output_bias: whether the output projection has one; None: as `bias`.
        seed: of every initial weight.

    Raises:
        ConfigError: sizes that do not divide, unknown names or options, without projections anything that needs one.
        UnsupportedError: the mechanism cannot be causal, take the position scheme or read a memory.

    Example:
        >>> import torch
        >>> layer = AttentionLayer(32, "local(window=4)", heads=4, kv_heads=2, position="rotary")
        >>> layer(torch.randn(1, 10, 32)).hidden.shape
        torch.Size([1, 10, 32])

    Source: Vaswani et al. 2017, section 3.2.2.
    """

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
        causal: bool = True,
        max_length: int | None = None,
        dropout: float = 0.0,
        projections: str = "all",
        bias: bool = False,
        output_bias: bool | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if heads < 1 or (dim % heads and (key_dim is None or value_dim is None)):
            raise ConfigError(f"AttentionLayer: heads must divide dim, got dim={dim}, heads={heads}")
        self.dim, self.cross = dim, context_dim is not None
        wanted = Heads(
            count=heads,
            key_dim=key_dim or dim // heads,
            value_dim=value_dim or dim // heads,
            query_dim=query_dim,
            kv_count=kv_heads,
            causal=causal and not self.cross,
            max_length=max_length,
            dropout=dropout,
            seed=seed,
        )
        self.attention = build(spec, wanted) if isinstance(spec, str) else spec
        if any(getattr(self.attention.heads, fact) != getattr(wanted, fact) for fact in _SERVED):
            raise ConfigError(f"the shared mechanism serves {self.attention.heads}, this layer needs {wanted}")
        self.heads, self.projections = wanted, projections
        info = self.attention.info
        if self.cross and not info.supports.cross:
            self.attention.refuse("cross-attention (context_dim)", "cross")
        if info.shares_query_key and wanted.kv_heads != heads:
            raise ConfigError(f"{info.title} uses queries as keys, so kv_heads must equal heads={heads}")
        self.position = build_position(position, wanted, dim) if isinstance(position, str) else position
        self._check_position()
        self.memory = build_memory(memory) if isinstance(memory, str) else memory
        if self.memory is not None and not (info.supports.prefix and wanted.causal):
            self.attention.refuse("a memory (leading keys of the past)", "prefix")
        source = dim if context_dim is None else context_dim
        output_bias = bias if output_bias is None else output_bias
        self._check_projections(source, bias or output_bias)
        reads_key = "k" in info.reads and not info.shares_query_key
        # Who reads the weights of a projection has asked for projections.
        query = self._project("query", dim, heads * wanted.query_width, bias) if "q" in info.reads else None
        key = self._project("key", source, wanted.kv_heads * wanted.key_dim, bias) if reads_key else None
        self.query, self.key = cast("nn.Linear | None", query), cast("nn.Linear | None", key)
        self.value = cast(nn.Linear, self._project("value", source, wanted.kv_heads * wanted.value_width, bias))
        self.output = cast(nn.Linear, self._project("output", heads * wanted.value_width, dim, output_bias))
        self.global_rows: GlobalRows | None = None
        if projections in ("global", "separate"):
            own = query or nn.Identity(), key or nn.Identity(), self.value
            self.global_rows = GlobalRows(self.attention, *own, separate=projections == "separate")

    def _check_projections(self, source: int, bias: bool) -> None:
        if self.projections not in PROJECTIONS:
            raise ConfigError(
                f"AttentionLayer has no projections={self.projections!r}; it has {', '.join(PROJECTIONS)}"
            )
        if self.projections != "none":
            return
        heads, each = self.heads, self.dim // self.heads.count
        widths = {"query_dim": heads.query_width, "key_dim": heads.key_dim, "value_dim": heads.value_width}
        wrong = [f"{name}={width}, not dim / heads = {each}" for name, width in widths.items() if width != each]
        if heads.count * each != self.dim:
            wrong.append(f"heads={heads.count}, which does not divide dim={self.dim}")
        if heads.kv_heads != heads.count:
            wrong.append(f"kv_heads={heads.kv_heads}, not heads={heads.count}")
        if source != self.dim:
            wrong.append(f"context_dim={source}, not dim={self.dim}")
        if bias:
            wrong.append("a bias, which belongs to a projection")
        if wrong:
            raise ConfigError(
                f"projections='none' splits the hidden states into heads as they are; got {'; '.join(wrong)}. "
                "Leave it out, or use projections='all'"
            )

    def _project(self, name: str, width: int, out: int, bias: bool) -> nn.Module:
        if self.projections == "none":
            return nn.Identity()
        return linear(width, out, bias=bias, draw=generator(self.heads.seed, name))

    def _check_position(self) -> None:
        scheme, info = self.position, self.attention.info
        if scheme is None:
            return
        # A shared module was built for another layer; what its weights and directions depend on must agree.
        facts = ("count", "key_dim", "causal") if scheme.biased else ("key_dim",) if scheme.transforms else ()
        if any(getattr(scheme.heads, fact) != getattr(self.heads, fact) for fact in facts) or (
            scheme.absolute and scheme.dim != self.dim
        ):
            raise ConfigError(
                f"the shared position serves dim={scheme.dim} and {scheme.heads}, this layer needs dim={self.dim} and "
                f"{self.heads}"
            )
        if scheme.transforms and self.heads.query_width != self.heads.key_dim:
            raise UnsupportedError(
                f"position {scheme.title} changes queries and keys of one width, got query_dim="
                f"{self.heads.query_width}, key_dim={self.heads.key_dim}; use an absolute scheme or a bias by distance"
            )
        if self.cross and (scheme.transforms or scheme.biased):
            raise UnsupportedError(
                f"position {scheme.title} compares slots of one sequence, and cross-attention has two; "
                "use an absolute scheme (sinusoidal, learned) on both, or none"
            )
        if scheme.biased and not info.supports.bias:
            why = self.attention.reasons.get("bias", "")
            raise UnsupportedError(
                f"position {scheme.title} adds a bias to the logits, which {info.title} does not support"
                f"{': ' + why if why else ''}. "
                "Mechanisms that do: regard list --supports bias"
            )
        if scheme.transforms and not {"q", "k"} <= set(info.reads):
            raise UnsupportedError(
                f"position {scheme.title} changes queries and keys, and {info.title} reads only "
                f"{', '.join(info.reads)}; use an absolute scheme (sinusoidal, learned)"
            )

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """The state before the first position, by default on the device and in the dtype of the weights.

        Raises:
            UnsupportedError: the mechanism keeps no state.
        """
        weight = next(self.parameters(), torch.empty(0))
        return self.attention.initial_state(batch, device=device or weight.device, dtype=dtype or weight.dtype)

    def prepare(
        self, context: Float[Tensor, "batch keys context"], *, key_mask: Bool[Tensor, "batch keys"] | None = None
    ) -> State:
        """The state of a cross-attention source, computed once; pass it as `state` without a context.

        Raises:
            UnsupportedError: this is a self-attention layer.
        """
        if not self.cross:
            raise UnsupportedError("prepare is for cross-attention: build the layer with context_dim")
        k, v = self._keys(context), self._split(self.value(context), self.heads.kv_heads)
        if self.attention.info.supports.state:
            empty = context.new_zeros(context.shape[0], self.heads.count, 0, self.heads.query_width)
            start = self.initial_state(context.shape[0], device=context.device, dtype=v.dtype)
            state = self.attention(empty, k, v, key_mask=key_mask, state=start).state
            assert state is not None
            return state
        mask = {} if key_mask is None else {"key_mask": key_mask}
        return Prepared({"k": k, "v": v, **mask}, k.shape[2])

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        context: Float[Tensor, "batch keys context"] | None = None,
        *,
        key_mask: Bool[Tensor, "batch keys"] | None = None,
        positions: Int[Tensor, "*batch length"] | None = None,
        marks: Int[Tensor, "batch keys"] | None = None,
        state: State | None = None,
        memory: Tensor | None = None,
    ) -> LayerOutput:
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
            memory: hidden states of the past, from `Memory.initial` or an earlier call.

        Raises:
            ShapeError: a context where none belongs, or none where one is needed.
            UnsupportedError: what the mechanism does not support.
        """
        past = state.length if state is not None and not self.cross else 0
        length = x.shape[1]
        scheme, attention = self.position, self.attention
        if scheme is not None and scheme.absolute:
            where = torch.arange(past, past + length, device=x.device) if positions is None else positions
            x = scheme.embed(x, where)
        source, key_mask, remembered = self._source(x, context, key_mask, state, memory)
        q = self._queries(x)
        if source is None:
            k, v, key_mask, state = self._prepared(q, state)
        else:
            k = q if attention.info.shares_query_key and source is x else self._keys(source)
            v = self._split(self.value(source), self.heads.kv_heads)
        rows, bias, places = self.global_rows, None, None
        if rows is not None:
            k, v = rows.columns(attention, x, k, v, key_mask=key_mask, marks=marks)
        if scheme is not None and (scheme.transforms or scheme.biased):
            keys = k.shape[2]
            if scheme.biased:  # a marked token may be seen from anywhere
                reach = attention.reach if marks is None else partial(Attention.reach, attention)
                bias = scheme.bias(q, *reach(length, keys, state))
            if scheme.transforms:
                places = self._places(scheme, past, length, keys, positions, x.device)
                q, k = scheme.transform(q, k, *places)
            elif positions is not None and keys != length:
                raise UnsupportedError(_SLOTS_ONLY)
        got = attention(q, k, v, key_mask=key_mask, bias=bias, marks=marks, state=state)
        values = got.values
        if rows is not None:
            at = None if places is None else places[1]
            values = rows(attention, x, values, key_mask=key_mask, marks=marks, position=scheme, places=at)
        hidden = self.output(values.transpose(1, 2).flatten(2))
        return LayerOutput(hidden, got.state, remembered, got.losses)

    @staticmethod
    def _places(
        scheme: Position, past: int, queries: int, keys: int, positions: Tensor | None, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Where the queries and the keys are; one tensor for both where they are the same."""
        if positions is None:
            at = scheme.slots(past, past + keys, device)
            return (at if keys == queries else at[keys - queries :]), at
        if keys != queries:
            raise UnsupportedError(_SLOTS_ONLY)
        at = positions if positions.ndim == 1 else positions[:, None]
        return at, at

    def _source(
        self, x: Tensor, context: Tensor | None, key_mask: Tensor | None, state: State | None, memory: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Where keys come from, their mask, and the memory after this call."""
        if self.cross:
            if memory is not None:
                raise ShapeError("a cross-attention layer has no memory")
            if context is None and state is None:
                raise ShapeError("a cross-attention layer needs a context, or a state from `prepare`")
            return context, key_mask, None
        if context is not None:
            raise ShapeError("a self-attention layer takes no context; build it with context_dim for cross-attention")
        if memory is None:
            return x, key_mask, None
        if self.memory is None or state is not None:
            raise UnsupportedError("a memory needs a layer built with one, and excludes a state: use one of the two")
        leading = self.memory.read(memory)
        if key_mask is not None:
            key_mask = torch.cat([key_mask.new_ones(leading.shape[:2]), key_mask], 1)
        return torch.cat([leading, x], 1), key_mask, self.memory.write(memory, x)

    def _prepared(self, q: Tensor, state: State | None) -> tuple[Tensor, Tensor, Tensor | None, State | None]:
        if isinstance(state, Prepared):
            return state.content["k"], state.content["v"], state.content.get("key_mask"), None
        heads = self.heads
        k = q.new_zeros(q.shape[0], heads.kv_heads, 0, heads.key_dim)
        return k, q.new_zeros(q.shape[0], heads.kv_heads, 0, heads.value_width), None, state

    def _queries(self, x: Tensor) -> Tensor:
        query = self.query
        if query is not None:
            return self._split(query(x), self.heads.count)
        return x.new_zeros(()).expand(x.shape[0], self.heads.count, x.shape[1], self.heads.query_width)

    def _keys(self, source: Tensor) -> Tensor:
        if self.attention.info.shares_query_key:
            assert self.query is not None
            return self._split(self.query(source), self.heads.kv_heads)
        key = self.key
        if key is not None:
            return self._split(key(source), self.heads.kv_heads)
        return source.new_zeros(()).expand(source.shape[0], self.heads.kv_heads, source.shape[1], self.heads.key_dim)

    @staticmethod
    def _split(x: Tensor, heads: int) -> Tensor:
        batch, length, width = x.shape
        return x.reshape(batch, length, heads, width // heads).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, cross={self.cross}, projections={self.projections}"


def linear(width: int, out: int, *, bias: bool, draw: torch.Generator, scale: float = 1.0) -> nn.Linear:
    """A linear layer with normal weights of variance scale^2 / width and zero biases, drawn from `draw`."""
    # On the meta device its own initial weights cost nothing and leave the global random state alone.
    layer = nn.Linear(width, out, bias=bias, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.normal_(0, scale * width**-0.5, generator=draw)
        if bias:
            layer.bias.zero_()
    return layer
