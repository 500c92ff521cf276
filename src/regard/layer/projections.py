"""Projections: hidden states to queries, keys, values and further inputs, and averages to hidden states."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.core.attention import Attention, generator
from regard.core.errors import ConfigError, ShapeError, kind_of
from regard.core.info import Heads
from regard.core.state import State
from regard.layer.joined import Part, side_by_side

if TYPE_CHECKING:
    from regard.layer.global_rows import GlobalRows


class Projections(nn.Module):
    """Linear projections: queries x W^q, keys c W^k and values c W^v by head, output concat(heads) W^o.

    Only those that the mechanism reads exist; a mechanism that shares queries and keys has one for both.

    Args:
        attention: the mechanism.
        heads: what the layer asked it to serve; the seed of the initial weights.
        dim: width of the hidden states.
        context_dim: width of the source of keys and values.
        bias: whether queries, keys and values have biases.
        output_bias: whether the output has one.
    """

    def __init__(
        self, attention: Attention, heads: Heads, dim: int, context_dim: int, *, bias: bool, output_bias: bool
    ) -> None:
        super().__init__()
        self.heads, self.shares = heads, attention.info.shares_query_key
        self.global_rows: GlobalRows | None = None
        reads = attention.info.reads
        query = heads.count * heads.query_width if "q" in reads else 0
        key = heads.kv_heads * heads.key_dim if "k" in reads and not self.shares else 0
        self.query = self._linear("query", dim, query, bias) if query else None
        self.key = self._linear("key", context_dim, key, bias) if key else None
        self.value = self._linear("value", context_dim, heads.kv_heads * heads.value_width, bias)
        self.output = self._linear("output", heads.count * heads.value_width, dim, output_bias)

    def _linear(self, name: str, width: int, out: int, bias: bool) -> nn.Linear:
        return linear(width, out, bias=bias, draw=generator(self.heads.seed, name))

    def queries(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch heads length query_dim"]:
        """By head; zeros where the mechanism reads none."""
        heads, projection = self.heads, self.query
        if projection is not None:
            return by_head(projection(x), heads.count)
        return _unread(x, heads.count, heads.query_width)

    def keys(self, source: Float[Tensor, "batch length context"]) -> Float[Tensor, "batch kv_heads length key_dim"]:
        """By head of keys; zeros where the mechanism reads none."""
        heads, projection = self.heads, self.query if self.shares else self.key
        if projection is not None:
            return by_head(projection(source), heads.kv_heads)
        return _unread(source, heads.kv_heads, heads.key_dim)

    def values(self, source: Float[Tensor, "batch length context"]) -> Float[Tensor, "batch kv_heads length value"]:
        """By head of keys."""
        return by_head(self.value(source), self.heads.kv_heads)

    def of(
        self, x: Float[Tensor, "batch length dim"], source: Float[Tensor, "batch keys context"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of `x`, keys and values of a source; of the same hidden states by one product, where they are one."""
        if source is x and self.shares:
            q = self.queries(x)
            return q, q, self.values(x)
        if source is not x or not isinstance(self.value, Part) or self.query is None or self.key is None:
            return self.queries(x), self.keys(source), self.values(source)
        q, k, v = side_by_side(x, self.query, self.key, self.value)
        heads = self.heads
        return by_head(q, heads.count), by_head(k, heads.kv_heads), by_head(v, heads.kv_heads)

    def detached(self, source: Float[Tensor, "batch length context"]) -> tuple[Tensor, Tensor]:
        """Keys and values whose weights get no gradient."""
        still = {name: x.detach() for name, x in self.named_parameters()}
        return torch.func.functional_call(self, still, (source,))

    def forward(self, source: Float[Tensor, "batch length context"]) -> tuple[Tensor, Tensor]:
        """Keys and values of a source; by one product, where they are parts of it."""
        key = self.query if self.shares else self.key
        if key is None or not isinstance(self.value, Part):
            return self.keys(source), self.values(source)
        k, v = side_by_side(source, key, self.value)
        return by_head(k, self.heads.kv_heads), by_head(v, self.heads.kv_heads)

    def joined(
        self, values: Float[Tensor, "batch heads length value"], x: Float[Tensor, "batch length dim"]
    ) -> Float[Tensor, "batch length dim"]:
        """The output of the averages of every head; `x` are the hidden states of their queries."""
        del x
        return self.output(values.transpose(1, 2).flatten(2))


def _unread(x: Tensor, heads: int, width: int) -> Tensor:
    """Zeros by head, in the dtype that a projection of `x` would have."""
    device = x.device.type
    lower = torch.is_autocast_enabled(device) and x.dtype != torch.float64
    zero = x.new_zeros((), dtype=torch.get_autocast_dtype(device) if lower else x.dtype)
    return zero.expand(x.shape[0], heads, x.shape[1], width)


class GlobalProjections(Projections):
    """As `Projections`, and more for global tokens.

    Args:
        separate: whether global tokens have keys and values of their own too, beside the projections of their rows.
    """

    def __init__(
        self,
        attention: Attention,
        heads: Heads,
        dim: int,
        context_dim: int,
        *,
        bias: bool,
        output_bias: bool,
        separate: bool,
    ) -> None:
        super().__init__(attention, heads, dim, context_dim, bias=bias, output_bias=output_bias)
        from regard.layer.global_rows import GlobalRows  # with the tile engine, which few layers need

        ordinary = self.query or nn.Identity(), self.key or nn.Identity(), self.value
        self.global_rows = GlobalRows(attention, *ordinary, separate=separate)


class GatedProjections(Projections):
    """Those of a gated attention unit: q_h = z g_h + b_h, k_h = z g'_h + b'_h of one z = silu(x W^z) as wide as a head,
    v = silu(c W^v), output (silu(x W^u) * concat(heads)) W^o.

    The gains g are drawn from a normal distribution of deviation 0.02, or set by `set_gains`; the offsets b are 0 at
    first, and without biases there are none.

    Source: Hua et al. 2022, section 2 and code 1; without offsets: Su et al. 2022 (GAU-alpha).
    """

    def __init__(
        self, attention: Attention, heads: Heads, dim: int, context_dim: int, *, bias: bool, output_bias: bool
    ) -> None:
        reads, width = attention.info.reads, heads.key_dim
        if heads.query_width != width or (context_dim != dim and {"q", "k"} <= set(reads)):
            raise ConfigError(
                "projections='gated' makes queries and keys of one projection, so they have one width and one source; "
                f"got query_dim={heads.query_width}, key_dim={width}, dim={dim}, context_dim={context_dim}"
            )
        super().__init__(attention, heads, dim, context_dim, bias=bias, output_bias=output_bias)
        self.query = self.key = None
        self.base = self._linear("base", dim, width, bias) if {"q", "k"} & set(reads) else None
        self.gate = self._linear("gate", dim, heads.count * heads.value_width, bias)
        self.query_scale = self._scale("query", heads.count, bias) if "q" in reads else None
        self.key_scale = self._scale("key", heads.kv_heads, bias) if "k" in reads and not self.shares else None

    def _scale(self, name: str, count: int, bias: bool) -> "OffsetScale":
        return OffsetScale(count, self.heads.key_dim, bias=bias, draw=generator(self.heads.seed, name, "gain"))

    @torch.no_grad()
    def set_gains(self, value: float) -> None:
        """The same number for all gains, before training."""
        for scale in (self.query_scale, self.key_scale):
            if scale is not None:
                scale.gain.fill_(value)

    def queries(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch heads length query_dim"]:
        """By head, of the shared projection."""
        return super().queries(x) if self.query_scale is None else self.query_scale(self._shared(x))

    def keys(self, source: Float[Tensor, "batch length context"]) -> Float[Tensor, "batch kv_heads length key_dim"]:
        """By head of keys, of the shared projection."""
        scale = self.query_scale if self.shares else self.key_scale
        return super().keys(source) if scale is None else scale(self._shared(source))

    def of(
        self, x: Float[Tensor, "batch length dim"], source: Float[Tensor, "batch keys context"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `Projections.of`; of the same hidden states the shared projection is made once."""
        if source is not x or self.query_scale is None or (self.key_scale is None and not self.shares):
            return super().of(x, source)
        z = self._shared(x)
        q = self.query_scale(z)
        return q, q if self.key_scale is None else self.key_scale(z), self.values(x)

    def _shared(self, x: Tensor) -> Tensor:
        assert self.base is not None
        return nn.functional.silu(self.base(x))

    def values(self, source: Float[Tensor, "batch length context"]) -> Float[Tensor, "batch kv_heads length value"]:
        """By head of keys, through silu."""
        return nn.functional.silu(super().values(source))

    def joined(
        self, values: Float[Tensor, "batch heads length value"], x: Float[Tensor, "batch length dim"]
    ) -> Float[Tensor, "batch length dim"]:
        """The output of the averages of every head, gated by the hidden states of their queries."""
        return self.output(nn.functional.silu(self.gate(x)) * values.transpose(1, 2).flatten(2))


class OffsetScale(nn.Module):
    """x g_h + b_h for every head h.

    Args:
        heads: how many.
        width: of x.
        bias: whether there are offsets.
        draw: source of the gains.
    """

    def __init__(self, heads: int, width: int, *, bias: bool, draw: torch.Generator) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(heads, 1, width).normal_(0, 0.02, generator=draw))
        self.offset = nn.Parameter(torch.zeros(heads, 1, width)) if bias else None

    def forward(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch heads length width"]:
        """By head."""
        y = x[:, None] * self.gain
        y = y if self.offset is None else y + self.offset
        return y.to(x.dtype)  # of autocast, whose products are narrower than the weights


class NoProjections(Projections):
    """Hidden states themselves, split into heads, and their averages side by side: no weights.

    Raises:
        ConfigError: widths that do not fit, or biases.
    """

    def __init__(
        self, attention: Attention, heads: Heads, dim: int, context_dim: int, *, bias: bool, output_bias: bool
    ) -> None:
        each = dim // heads.count
        widths = {"query_dim": heads.query_width, "key_dim": heads.key_dim, "value_dim": heads.value_width}
        wrong = [f"{name}={width}, not dim / heads = {each}" for name, width in widths.items() if width != each]
        if heads.count * each != dim:
            wrong.append(f"heads={heads.count}, which does not divide dim={dim}")
        if heads.kv_heads != heads.count:
            wrong.append(f"kv_heads={heads.kv_heads}, not heads={heads.count}")
        if context_dim != dim:
            wrong.append(f"context_dim={context_dim}, not dim={dim}")
        if bias or output_bias:
            wrong.append("a bias, which belongs to a projection")
        if wrong:
            raise ConfigError(
                f"projections='none' splits the hidden states into heads as they are; got {'; '.join(wrong)}. "
                "Leave it out, or use projections='all'"
            )
        super().__init__(attention, heads, dim, context_dim, bias=False, output_bias=False)

    def _linear(self, name: str, width: int, out: int, bias: bool) -> Any:
        return nn.Identity()  # who reads the weights of a projection has asked for projections


class InputProjections(nn.ModuleDict):
    """Inputs of a mechanism besides queries, keys and values, from the hidden states of its queries or its keys.

    Args:
        attention: the mechanism, whose `raw_inputs` are projected.
        dim: width of the hidden states.
        context_dim: width of the source of the keys.
        seed: of the initial weights.
    """

    def __init__(self, attention: Attention, dim: int, context_dim: int, seed: int) -> None:
        super().__init__()
        for name, each in attention.raw_inputs.items():
            count, width = each.shape(attention.heads)
            source, draw = context_dim if each.slots == "keys" else dim, generator(seed, "input", name)
            self[name.replace(".", "_")] = linear(source, count * width, bias=True, draw=draw)

    def forward(
        self,
        attention: Attention,
        x: Float[Tensor, "batch queries dim"],
        source: Float[Tensor, "batch keys context"],
    ) -> Mapping[str, Tensor]:
        """The declared inputs of a call."""
        raw: dict[str, Tensor] = {}
        for name, each in attention.raw_inputs.items():
            count, _ = each.shape(attention.heads)
            raw[name] = by_head(self[name.replace(".", "_")](source if each.slots == "keys" else x), count)
        return attention.activate(raw) if raw else raw


KINDS = ("all", "none", "global", "separate", "gated")


def build_projections(
    kind: str, attention: Attention, heads: Heads, dim: int, context_dim: int, *, bias: bool, output_bias: bool
) -> Projections:
    """The projections of a layer.

    Raises:
        ConfigError: an unknown kind, or one that does not fit the sizes or the mechanism.
    """
    if context_dim < 1:
        raise ConfigError(f"AttentionLayer: context_dim must be at least 1, got {context_dim}")
    match kind:
        case "all":
            return Projections(attention, heads, dim, context_dim, bias=bias, output_bias=output_bias)
        case "none":
            return NoProjections(attention, heads, dim, context_dim, bias=bias, output_bias=output_bias)
        case "gated":
            return GatedProjections(attention, heads, dim, context_dim, bias=bias, output_bias=output_bias)
        case "global" | "separate":
            separate = kind == "separate"
            return GlobalProjections(
                attention, heads, dim, context_dim, bias=bias, output_bias=output_bias, separate=separate
            )
        case _:
            raise ConfigError(f"AttentionLayer has no projections={kind!r}; it has {', '.join(KINDS)}")


def check_hidden(name: str, x: Tensor, width: int, state: State | None = None) -> None:
    """Refuse what is no hidden states of this width, and what they go on from and is no state.

    Raises:
        ShapeError: it is not.
    """
    if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[2] != width or not x.is_floating_point():
        raise ShapeError(f"{name} must be floating (batch, length, dim={width}), got {kind_of(x)}")
    if state is not None and not isinstance(state, State):
        raise ShapeError(f"state must be one that initial_state or a call gave, got {kind_of(state)}")


def by_head(x: Float[Tensor, "batch length width"], heads: int) -> Float[Tensor, "batch heads length each"]:
    """Hidden states split into heads."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(1, 2)


def linear(width: int, out: int, *, bias: bool, draw: torch.Generator, scale: float = 1.0) -> nn.Linear:
    """A linear layer with normal weights of variance scale^2 / width and zero biases, drawn from `draw`."""
    # On the meta device its own initial weights cost nothing and leave the global random state alone.
    layer = nn.Linear(width, out, bias=bias, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.normal_(0, scale * width**-0.5, generator=draw)
        if bias:
            layer.bias.zero_()
    return layer
