"""Projections of their own for global tokens, around a mechanism that has some."""

import copy
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.sparse import Globals, Tokens, View
from regard.core.attention import Attention, accumulation_dtype, registered_name
from regard.core.errors import ConfigError
from regard.engines.tiles import masked_attention
from regard.engines.tiles.gathered import gather_tokens, replace_tokens
from regard.position import Position


class GlobalRows(nn.Module):
    """The rows of global tokens i from W_g: o_i = sum_j softmax_j(scale W^q_g x_i . W^k_g x_j) W^v_g x_j.

    Other rows keep the ordinary projections, for global columns too. `separate` makes four sets: where the key is a
    global token, other rows have W_l2g and global rows W_g2g for its key and value. All begin as copies of the ordinary
    ones. No x_j is projected for few global tokens: q . (W^k x_j) = (W^kT q) . x_j, and sum_j p_j W^v x_j =
    W^v sum_j p_j x_j, which is O(length dim) for each global token and head. Many of them (as many as a head is wide),
    and position schemes that transform keys, project every x_j.
    In training weights are dropped where the mechanism drops them, by a draw of these rows' own.

    Args:
        attention: a mechanism with global tokens, not causal.
        query, key, value: the ordinary projections.
        separate: whether global tokens have keys and values of their own.

    Raises:
        ConfigError: a mechanism without rows of global tokens.

    Source: Beltagy et al. 2020, section 3.1; four sets: Ainslie et al. 2020, section 3.2.
    """

    def __init__(
        self, attention: Attention, query: nn.Module, key: nn.Module, value: nn.Module, *, separate: bool
    ) -> None:
        super().__init__()
        if not isinstance(attention, Globals) or attention.heads.causal:
            why = "has no global tokens" if not isinstance(attention, Globals) else "is causal: no row is global"
            raise ConfigError(
                f"rows of global tokens have projections of their own, and {registered_name(type(attention))} {why}; "
                "use longformer, bigbird or etc with causal=False, or projections='all'"
            )
        self.heads = attention.heads
        copies = (copy.deepcopy(cast(nn.Linear, each)) for each in (query, key, value))
        self.query, self.key, self.value = copies
        self.key_l2g = self.value_l2g = self.key_g2g = self.value_g2g = None
        if separate:
            self.key_l2g, self.value_l2g = copy.deepcopy(self.key), copy.deepcopy(self.value)
            self.key_g2g, self.value_g2g = copy.deepcopy(self.key), copy.deepcopy(self.value)

    def columns(
        self,
        attention: Attention,
        x: Float[Tensor, "batch length dim"],
        k: Float[Tensor, "batch kv_heads length key"],
        v: Float[Tensor, "batch kv_heads length value"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None,
        marks: Int[Tensor, "batch length"] | None,
    ) -> tuple[Tensor, Tensor]:
        """Ordinary keys and values with those of global tokens replaced, where these have their own."""
        if self.key_l2g is None or self.value_l2g is None:
            return k, v
        assert isinstance(attention, Globals)
        tokens = attention.tokens(_view(x, key_mask, marks))
        x, count = gather_tokens(x[:, None], tokens.at)[:, 0], self.heads.kv_heads
        k = replace_tokens(k, tokens.at, tokens.real, _split(self.key_l2g(x), count))
        return k, replace_tokens(v, tokens.at, tokens.real, _split(self.value_l2g(x), count))

    def forward(
        self,
        attention: Attention,
        x: Float[Tensor, "batch length dim"],
        values: Float[Tensor, "batch heads length value"],
        *,
        key_mask: Bool[Tensor, "batch length"] | None,
        marks: Int[Tensor, "batch length"] | None,
        position: Position | None,
        key_positions: Int[Tensor, "*rows length"] | None,
    ) -> Float[Tensor, "batch heads length value"]:
        """The values of the mechanism with the rows of global tokens replaced.

        Args:
            attention: the mechanism.
            x: hidden states.
            values: what it returned.
            key_mask, marks: as it got them.
            position: the scheme of the layer.
            key_positions: where tokens are, for a scheme that transforms keys.
        """
        assert isinstance(attention, Globals)
        view = _view(x, key_mask, marks)
        tokens = attention.tokens(view)
        if not tokens.at.shape[1]:
            return values
        dropout = attention.draw_dropout()
        if view.key_mask is not None:
            x = x.masked_fill(~view.key_mask[..., None], 0)  # NaN under the mask must not survive a product
        asking = gather_tokens(x[:, None], tokens.at)[:, 0]
        q, bias = _split(self.query(asking), self.heads.count), None
        factors = None if dropout is None else dropout.factors(tokens.at, view.keys[None], like=q)
        if position is not None and position.biased:
            bias = position.bias(q, *Attention.bias_distances(attention, x.shape[1], x.shape[1]))
        transforms = position is not None and position.transforms
        if transforms or tokens.at.shape[1] * self.heads.group >= self.heads.key_dim:
            k, v = (_split(each(x), self.heads.kv_heads) for each in (self.key, self.value))
            if self.key_g2g is not None and self.value_g2g is not None:
                k = replace_tokens(k, tokens.at, tokens.real, _split(self.key_g2g(asking), self.heads.kv_heads))
                v = replace_tokens(v, tokens.at, tokens.real, _split(self.value_g2g(asking), self.heads.kv_heads))
            if transforms:
                assert position is not None
                assert key_positions is not None
                shared = key_positions.ndim == 1
                rows = (
                    key_positions[tokens.at][:, None]
                    if shared
                    else gather_tokens(key_positions[..., None], tokens.at)[..., 0]
                )
                q, k = position.transform(q, k, rows, key_positions)
            allowed, logits = attention.row_terms(q, tokens, view, bias)
            new = masked_attention(q, k, v, allowed, scale=attention.factor, bias=logits, factors=factors)[0]
        else:
            allowed, logits = attention.row_terms(q, tokens, view, bias)
            new = self._absorbed(q, x, asking, tokens, attention.factor, allowed, logits, factors)
        return replace_tokens(values, tokens.at, tokens.real, new.to(values.dtype))

    def _absorbed(
        self,
        q: Float[Tensor, "batch heads globals key"],
        x: Float[Tensor, "batch length dim"],
        asking: Float[Tensor, "batch globals dim"],
        tokens: Tokens,
        scale: float,
        allowed: Bool[Tensor, "batch 1 globals length"],
        bias: Tensor | None,
        factors: Float[Tensor, "batch heads globals length"] | None,
    ) -> Float[Tensor, "batch heads globals value"]:
        """Without keys and values of every x: their weights move to the few queries and to the few averages."""
        shape, wide = (*q.shape[:3], x.shape[1]), accumulation_dtype(q.dtype)
        q, x = q.to(wide), x.to(wide)
        content = (q @ self._by_head(self.key).to(wide)).flatten(1, 2) @ x.mT
        content = content.view(shape) + self._offset(self.key, q)
        columns = tokens.at[:, None, None].expand(*q.shape[:3], -1)
        real = tokens.real[:, None, None]
        if self.key_g2g is not None:
            among = q @ self._repeated(_split(self.key_g2g(asking), self.heads.kv_heads)).mT.to(wide)
            content = content.scatter(3, columns, torch.where(real, among, content.gather(3, columns)))
        logits = scale * content if bias is None else scale * content + bias
        logits = logits.masked_fill(~allowed, float("-inf"))
        none = ~allowed.any(-1, keepdim=True)
        p = logits.masked_fill(none, 0).softmax(-1).masked_fill(none, 0)
        p = p if factors is None else p * factors
        part: Tensor | float = 0.0
        if self.value_g2g is not None:
            among = p.gather(3, columns).masked_fill(~real, 0)
            part = among @ self._repeated(_split(self.value_g2g(asking), self.heads.kv_heads)).to(wide)
            p = p.scatter(3, columns, p.gather(3, columns).masked_fill(real, 0))
        mixed = (p.flatten(1, 2) @ x).view(*q.shape[:3], -1)
        values = mixed @ self._by_head(self.value).mT.to(wide)
        if self.value.bias is not None:
            values = values + p.sum(-1, keepdim=True) * self._by_bias(self.value)
        return values + part

    def _by_head(self, projection: nn.Linear) -> Float[Tensor, "heads out dim"]:
        """The matrix of every query head."""
        return projection.weight.unflatten(0, (self.heads.kv_heads, -1)).repeat_interleave(self.heads.group, 0)

    def _offset(self, projection: nn.Linear, q: Tensor) -> Tensor | float:
        """The part of a row of logits that the bias of the keys adds."""
        if projection.bias is None:
            return 0.0
        return q @ self._by_bias(projection).mT.to(q.dtype)

    def _by_bias(self, projection: nn.Linear) -> Float[Tensor, "1 heads 1 out"]:
        return self._repeated(_split(projection.bias[None, None], self.heads.kv_heads))

    def _repeated(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.heads.group, 1)


def _view(x: Tensor, key_mask: Tensor | None, marks: Tensor | None) -> View:
    slots = torch.arange(x.shape[1], device=x.device)
    return View(len(x), slots, slots, key_mask, marks)


def _split(x: Float[Tensor, "batch length width"], heads: int) -> Float[Tensor, "batch heads length each"]:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)
