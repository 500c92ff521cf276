"""torch's multi-head attention with any mechanism inside."""

import inspect
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.catalog import build, describe, refuse_inputs
from regard.core.attention import Attention
from regard.core.bias import ScoreBias
from regard.core.errors import ConfigError, ShapeError, UnsupportedError
from regard.core.info import Heads
from regard.functional import weights as weights_without_gradients
from regard.integrations._masks import as_infinite, future_hidden, is_mask, is_triangle, require_first_keys, triangle


def keep_forward(module: nn.Module, arguments: tuple[object, ...]) -> None:
    """A hook that does nothing: torch's encoder layers pass by the forward of a module without any."""


class MultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with any mechanism inside: the same arguments, meanings, names and shapes.

    out = concat_i(attention(q W^q_i, k W^k_i, v W^v_i)) W^o, torch's with spec="softmax". It differs where torch gives
    NaN: a query without any key gets zeros (the output projection's bias remains). The weights returned in training are
    those before dropout. A mechanism with weights of its own adds them to the state dict, under `attention`; torch's
    state dicts then load with strict=False.

    An `attn_mask` that is exactly causal (the queries are the last positions; for square masks torch's triangle) is not
    given to the mechanism as a mask: it selects the mechanism's causal form. Every other one becomes a bias on the
    logits, for mechanisms that support `bias`. `add_bias_kv` and `add_zero_attn` add keys that have no position, for
    mechanisms that see content only. A mechanism that uses queries as keys leaves the projection of the keys unused.

    Inside `torch.compile` nobody can look at a mask: `is_causal=True` selects the causal form, without it a causal mask
    is a bias like any other, and what was said of a mask is asserted when the graph runs.

    Cost: the mechanism's, and with `need_weights` one more call per head_dim keys, of queries x keys numbers.

    Args:
        embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype: as
            torch's.
        spec: the mechanism, such as `local(window=128)`.
        causal: None: each call decides by its `attn_mask`. A mechanism that keeps weights or random features of its own
            is built in one form, bidirectional if it has that. True: every call is causal, with or without a mask.
            False: never; a causal mask is a bias like any other.
        max_length: longest sequence, for mechanisms that need to know.
        seed: of the mechanism's weights; the projections are drawn as torch draws them.

    Raises:
        ConfigError: heads that do not divide `embed_dim`, an unknown mechanism or option.
        UnsupportedError: the mechanism does not support what is asked.

    Example:
        >>> import torch
        >>> attention = MultiheadAttention(32, 4, batch_first=True, spec="local(window=2)")
        >>> x = torch.randn(1, 6, 32)
        >>> (attention(x, x, x)[1][0, 0] > 0).tolist()  # the averaged weights of the first query
        [True, True, True, False, False, False]
        >>> attention.load_state_dict(torch.nn.MultiheadAttention(32, 4).state_dict())
        <All keys matched successfully>

    Source: Vaswani et al. 2017, section 3.2.2; torch.nn.MultiheadAttention.
    """

    losses: dict[str, Tensor]
    """auxiliary losses of the last call in training; see `regard.integrations.torch.losses`"""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        spec: str = "softmax",
        causal: bool | None = None,
        max_length: int | None = None,
        seed: int = 0,
    ) -> None:
        if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
            raise ConfigError(f"MultiheadAttention: num_heads must divide embed_dim, got {embed_dim=}, {num_heads=}")
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        )
        self.register_forward_pre_hook(keep_forward)
        self.spec, self.causal, self.losses = spec, causal, {}
        self.heads = Heads(
            count=num_heads,
            key_dim=self.head_dim,
            max_length=max_length,
            dropout=dropout,
            seed=seed,
            causal=bool(causal),
        )
        self.attention = forms(spec, self.heads, causal).to(device=device, dtype=dtype)
        for form in cast("list[Attention]", list(self.attention.values())):
            self._check_extra_keys(form)

    def _check_extra_keys(self, form: Attention) -> None:
        capability = "prefix" if form.heads.causal else "cross"
        if self._extra and not (form.info.sees_content_only and getattr(form.info.supports, capability)):
            raise UnsupportedError(
                f"{self.spec} does not support add_bias_kv or add_zero_attn: they add keys that have no position, so "
                "the mechanism must see content only. Mechanisms that do: softmax, linear, ..."
            )

    @property
    def _extra(self) -> int:
        return int(self.bias_k is not None) + int(self.add_zero_attn)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from `query` to `key`; every argument as torch's.

        Args:
            query: (length, dim), (length, batch, dim), or (batch, length, dim) with `batch_first`, which may be nested.
            key, value: the same with their own length and widths.
            key_padding_mask: (batch, keys), True = padding; or numbers that are added to the logits.
            need_weights: whether to return the weights.
            attn_mask: (queries, keys) or (batch x heads, queries, keys), True = not allowed; or numbers to add.
            average_attn_weights: over the heads.
            is_causal: says that `attn_mask`, which must be there, is the causal one. This is checked.

        Returns:
            The output, shaped as `query`; and weights (batch, queries, keys) or (batch, heads, queries, keys), or None.

        Raises:
            UnsupportedError: a request that the mechanism does not support, such as a mask or weights.
            ConfigError: `is_causal` without the causal mask.
            ShapeError: shapes or dtypes that do not fit.
        """
        if query.is_nested or key.is_nested or value.is_nested:
            if key_padding_mask is not None or attn_mask is not None:
                raise ShapeError("nested tensors know their lengths: pass no masks beside them")
            return self._nested(query, key, value, need_weights, average_attn_weights)
        if query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim:
            raise ShapeError(
                "query, key and value must all be (batch, length, dim) or (length, dim), got "
                f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
            )
        batched, shares = query.ndim == 3, key is query
        query, key, value = self._batch_first(query, key, value)
        if not batched and key_padding_mask is not None:
            key_padding_mask = key_padding_mask[None]
        batch, queries, keys = query.shape[0], query.shape[1], key.shape[1]
        if key.shape[0] != batch or value.shape[:2] != key.shape[:2]:
            raise ShapeError(
                f"key and value must have the batch of query and one length, got {tuple(query.shape)}, "
                f"{tuple(key.shape)}, {tuple(value.shape)} as (batch, length, dim)"
            )
        self._check_masks(key_padding_mask, attn_mask, batch, queries, keys)
        key_padding_mask, attn_mask = as_infinite(key_padding_mask), as_infinite(attn_mask)
        form, attn_mask = self._form(attn_mask, queries, keys, is_causal)
        key_mask, table = self._masks(key_padding_mask, attn_mask, queries, query.dtype)
        if table is not None:
            require_first_keys(form, table)
        q, k, v = self._project(query, key, value)
        if form.info.shares_query_key:
            if not shares:
                form.refuse("a key that is not the query", "cross")
            k = q
        if self._extra:
            k, v = self._with_extra_keys(k, v)
            key_mask = None if key_mask is None else F.pad(key_mask, (self._extra, 0), value=True)
            table = None if table is None else F.pad(table, (self._extra, 0), value=table.dtype == torch.bool)
        bias = None if table is None else ScoreBias(table=table)
        seen = effective_weights(form, q, k, key_mask, bias, "need_weights=False") if need_weights else None
        got = form(q, k, v, key_mask=key_mask, bias=bias)
        self.losses = got.losses
        out = self.out_proj(got.values.transpose(1, 2).flatten(2))
        if seen is not None:
            seen = torch.cat([seen[..., self._extra :], seen[..., : self._extra]], -1)  # torch puts those keys last
            seen = seen.mean(1) if average_attn_weights else seen
        if not batched:
            return out[0], None if seen is None else seen[0]
        return out if self.batch_first else out.transpose(0, 1), seen

    def _batch_first(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All as (batch, length, dim); what was one tensor stays one."""

        def turned(x: Tensor) -> Tensor:
            return x[None] if x.ndim == 2 else x if self.batch_first else x.transpose(0, 1)

        q = turned(query)
        k = q if key is query else turned(key)
        return q, k, q if value is query else k if value is key else turned(value)

    def _nested(
        self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool, average: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Nested tensors, which torch's encoder makes of padded ones in evaluation: padded, attended, nested again."""
        inputs = (query, key, value)
        if not all(x.is_nested and x.layout == torch.strided for x in inputs) or not self.batch_first:
            raise ShapeError("nested query, key and value must all be nested, in strided layout, with batch_first=True")
        padded = {id(x): nn.utils.rnn.pad_sequence(list(x.unbind()), batch_first=True) for x in inputs}
        lengths = [[len(row) for row in x.unbind()] for x in (query, key)]
        keep = torch.arange(max(lengths[1]), device=key.device) < torch.tensor(lengths[1], device=key.device)[:, None]
        out, seen = self(*(padded[id(x)] for x in inputs), ~keep, need_weights, None, average)
        rows = [row[:length] for row, length in zip(out, lengths[0], strict=True)]
        return torch.nested.as_nested_tensor(rows), seen

    def _form(
        self, attn_mask: Tensor | None, queries: int, keys: int, is_causal: bool
    ) -> tuple[Attention, Tensor | None]:
        """The form of the mechanism that serves a call, and the mask that is left for it."""
        if attn_mask is not None and torch.compiler.is_compiling():
            return self._traced_form(attn_mask, queries, keys, is_causal)
        if is_causal and (attn_mask is None or not is_triangle(attn_mask, 1)):
            raise ConfigError(
                "is_causal says that attn_mask is the causal mask, and it is "
                f"{'missing' if attn_mask is None else 'another'}: pass "
                "torch.nn.Transformer.generate_square_subsequent_mask(length), or build with causal=True"
            )
        by_name = {name: cast(Attention, form) for name, form in self.attention.items()}
        causal = by_name.get("causal")
        if causal is not None and attn_mask is not None:
            serves = queries == keys or (queries < keys and causal.info.supports.prefix)
            if serves and is_triangle(attn_mask, keys - queries + 1):
                return causal, None
        if causal is not None and self.causal:
            if attn_mask is not None and not bool(future_hidden(attn_mask)):
                raise UnsupportedError(
                    f"{self.spec} was built with causal=True, and attn_mask lets a query see a later key: build with "
                    "causal=None or causal=False"
                )
            return causal, attn_mask
        if "bidirectional" in by_name:
            if (
                attn_mask is not None
                and not by_name["bidirectional"].info.supports.bias
                and bool(future_hidden(attn_mask))
            ):
                raise UnsupportedError(
                    f"{self.spec} does not support attn_mask as a bias, and this form is not causal: build with "
                    "causal=True. Mechanisms with a bias: regard list --supports bias"
                )
            return by_name["bidirectional"], attn_mask
        raise UnsupportedError(
            f"{self.spec} is causal only, and attn_mask is {'missing' if attn_mask is None else 'not causal'}: build "
            "with causal=True to be causal without a mask. Other mechanisms: regard list --supports bidirectional"
        )

    def _traced_form(
        self, attn_mask: Tensor, queries: int, keys: int, is_causal: bool
    ) -> tuple[Attention, Tensor | None]:
        """As `_form` where a compiler hides what the mask holds: what it must hold is asserted when the graph runs."""
        by_name = {name: cast(Attention, form) for name, form in self.attention.items()}
        causal, free = by_name.get("causal"), by_name.get("bidirectional")
        if is_causal:
            torch._assert_async(triangle(attn_mask, 1), "is_causal says that attn_mask is the causal mask; it is not")
            if causal is not None and queries == keys:
                return causal, None
        if causal is not None and self.causal:
            if causal.info.supports.bias:
                torch._assert_async(future_hidden(attn_mask), "causal=True, and attn_mask lets a query see a later key")
                return causal, attn_mask
            seen = triangle(attn_mask, keys - queries + 1)
            torch._assert_async(seen, f"{self.spec} takes no attn_mask but the causal one")
            return causal, None
        if free is None or not free.info.supports.bias:
            raise UnsupportedError(
                f"{self.spec} takes no attn_mask as a bias, and torch.compile hides whether this one is causal: pass "
                "is_causal=True with the causal mask, or build with causal=True"
            )
        return free, attn_mask

    def _check_masks(
        self, padding: Tensor | None, attn_mask: Tensor | None, batch: int, queries: int, keys: int
    ) -> None:
        by_head = (batch * self.num_heads, queries, keys)
        if attn_mask is not None and (attn_mask.shape not in ((queries, keys), by_head) or not is_mask(attn_mask)):
            raise ShapeError(
                f"attn_mask must be boolean or floating, (queries, keys)={(queries, keys)} or (batch x heads, queries, "
                f"keys)={by_head}, got {attn_mask.dtype} {tuple(attn_mask.shape)}"
            )
        if padding is not None and (padding.shape != (batch, keys) or not is_mask(padding)):
            raise ShapeError(
                f"key_padding_mask must be boolean or floating (batch={batch}, keys={keys}), True = padding, got "
                f"{padding.dtype} {tuple(padding.shape)}"
            )

    def _masks(
        self, padding: Tensor | None, attn_mask: Tensor | None, queries: int, dtype: torch.dtype
    ) -> tuple[Bool[Tensor, "batch keys"] | None, Tensor | None]:
        """True = keep for the keys, and a table: what is added to the logits or, boolean, allowed."""
        table: Tensor | None = None
        if attn_mask is not None:
            table = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask
            table = table[None, None] if table.ndim == 2 else table.unflatten(0, (-1, self.num_heads))
        if padding is None:
            return None, table
        if padding.dtype == torch.bool:
            return ~padding, table
        hidden = padding == float("-inf")
        plain = (hidden | (padding == 0)).all()
        if torch.compiler.is_compiling() and not padding.requires_grad:  # a table of all pairs would be slow
            message = "inside torch.compile key_padding_mask holds 0 and -inf alone: other numbers go into attn_mask"
            torch._assert_async(plain, message)
            return ~hidden, table
        if bool(plain) and not padding.requires_grad:
            return ~hidden, table
        added = padding.masked_fill(hidden, 0)[:, None, None, :].expand(-1, 1, queries, -1)
        if table is not None and table.dtype == torch.bool:
            table = torch.zeros(table.shape, dtype=dtype, device=table.device).masked_fill(~table, float("-inf"))
        return ~hidden, added if table is None else table + added

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values (batch, heads, length, head_dim)."""
        if self.in_proj_weight is not None and query is key and key is value:
            projected = F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            if self.in_proj_weight is not None:
                weights = self.in_proj_weight.chunk(3)
            biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
            triples = zip((query, key, value), weights, biases, strict=True)
            projected = [F.linear(x, cast(Tensor, weight), bias) for x, weight, bias in triples]
        return [x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for x in projected]

    def _with_extra_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of `add_bias_kv` and `add_zero_attn`, as a past that every query sees."""
        extended: list[Tensor] = []
        for x, learned in ((k, self.bias_k), (v, self.bias_v)):
            shape = (x.shape[0], self.num_heads, 1, self.head_dim)
            extra = [] if learned is None else [learned.view(1, self.num_heads, 1, self.head_dim).expand(shape)]
            extra += [x.new_zeros(shape)] if self.add_zero_attn else []
            extended.append(torch.cat([*(one.to(x.dtype) for one in extra), x], 2))
        return extended[0], extended[1]


def forms(spec: str, heads: Heads, causal: bool | None) -> nn.ModuleDict:
    """The mechanism as `bidirectional`, as `causal`, or both: where the call decides and there are no weights to share.

    Raises:
        UnsupportedError: no such form.
    """
    info = describe(spec)
    refuse_inputs(info, spec, "torch's attention")
    supports = info.supports
    if causal is not None:
        wanted = [causal]
    elif supports.causal and supports.bidirectional:
        mechanism = build(spec, replace(heads, causal=False))
        wanted = [False] if mechanism.state_dict() else [False, True]
    else:
        wanted = [not supports.bidirectional]
    return nn.ModuleDict(
        {"causal" if form else "bidirectional": build(spec, replace(heads, causal=form)) for form in wanted}
    )


def effective_weights(
    mechanism: Attention,
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    key_mask: Bool[Tensor, "batch keys"] | None,
    bias: ScoreBias | None,
    without: str,
) -> Float[Tensor, "batch heads queries keys"]:
    """`regard.weights` with gradients, as the weights of torch and transformers have them.

    Args:
        without: the argument that does without weights, for the message.

    Raises:
        UnsupportedError: the mechanism has no such matrix.
    """
    if not mechanism.info.affine_in_value:
        raise UnsupportedError(
            f"{mechanism.info.title} has no attention weights: its output is not affine in the values. Pass {without}"
        )
    return inspect.unwrap(weights_without_gradients)(mechanism, q, k, key_mask=key_mask, bias=bias)
