"""The dense templates: every query against every key that it may see, and the steps that definitions share."""

from typing import Annotated, Any

import torch
from annotated_types import Gt
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.core.attention import Attended, Attention, Call
from regard.core.options import weight
from regard.core.state import Entry, per_slot
from regard.engines.dense import HERE, chunked, dot_product, expand_heads, tiles


class Dense(Attention):
    """Template: weights = normalise(score(q, k) + bias) over the allowed keys, values = weights v.

    A mechanism publishes its score and normaliser as a `Rule` in `setup`, and says in `project` and `weights` what they
    read. The state keeps projected keys, so that decoding projects each key once.
    """

    rule: str = weight()
    """what `publish` returned"""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_published": HERE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: value for name, value in state.items() if name != "_published"})
        if "rule" in state and state.get("_published") is not HERE:  # of another process, which has rules of its own
            self.rule = type(self)(self.heads, **self.options).rule

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The tensors that the score reads instead of q (batch, heads, ...) and k (batch, kv_heads, ...)."""
        return q, k

    @property
    def key_width(self) -> int:
        """Width of a projected key."""
        return self.heads.key_dim

    def weights(self) -> list[Tensor]:
        """Further arguments of the score."""
        return []

    @property
    def dropped(self) -> float:
        """Probability of dropping a weight now."""
        return self.heads.dropout if self.training else 0.0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Project, remember, average."""
        q, k = self.project(q, k)
        k, v, call = remember(k, v, call)
        if not (q.shape[2] or call.lse):
            return Attended(v.new_empty(*q.shape[:3], v.shape[3]), call.state)
        return self.average(q, k, v, call)

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The average over every key, from projected q and k."""
        k, v = expand_heads(k, self.heads.count), expand_heads(v, self.heads.count)
        return Attended(chunked(self.rule, q, k, v, call, self.weights(), dropout=self.dropped), call.state)

    def dot_product(self, q: Tensor, k: Tensor, v: Tensor, call: Call, *, scale: float = 1.0) -> Attended:
        """`average` where the weights are a softmax of scaled inner products: by the fastest engine, without a rule."""
        if q.dtype != k.dtype:  # autocast leaves the dtype of its product
            q = q.to(k.dtype)
        if call.lse and not self.dropped:
            values, lse = tiles(q, k, v, call, scale=scale)
            return Attended(values, call.state, lse=lse)
        values = dot_product(q, k, v, call, scale=scale, dropout=self.dropped)
        lse = tiles(q, k, v, call, scale=scale)[1] if call.lse else None
        return Attended(values, call.state, lse=lse)

    def state_layout(self) -> dict[str, Entry]:
        """Every projected key, and every value."""
        heads = self.heads
        return {"k": per_slot(heads.kv_heads, self.key_width), "v": per_slot(heads.kv_heads, heads.value_width)}


class Scaled(Dense):
    """Template: the score reads inner products times one number."""

    scale: Annotated[float, Gt(0)] | None = None
    """of the inner products; None: 1/sqrt(key_dim)"""

    @property
    def factor(self) -> float:
        """The factor of the inner products."""
        return self.heads.key_dim**-0.5 if self.scale is None else self.scale


def remember(k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Call]:
    """Keys and values of every slot, and the call with their mask, kept inputs and the state behind them."""
    if call.state is None:
        return k, v, call
    if not call.inputs:
        kept, call = call.remember(k=k, v=v)
        return kept["k"], kept["v"], call
    before, keys = call.state.storage(), k.shape[2]
    new = {name: x for name, x in call.inputs.items() if name in before}
    kept, call = call.remember(k=k, v=v, **{name: x[:, :, :keys] for name, x in new.items()})
    if not new:
        return kept["k"], kept["v"], call
    further = {name: x[:, :, keys:] for name, x in new.items() if x.shape[2] > keys}  # of queries behind the last key
    inputs = {name: torch.cat([kept[name], further[name]], 2) if name in further else kept[name] for name in new}
    return kept["k"], kept["v"], call._replace(inputs={**call.inputs, **inputs})


def random_weight(draw: torch.Generator, *shape: int) -> nn.Parameter:
    """Normal numbers of variance 1 / (last of the shape)."""
    return nn.Parameter(torch.randn(shape, generator=draw) * shape[-1] ** -0.5)


def inner_products(
    q: Float[Tensor, "batch heads queries dim"], k: Float[Tensor, "batch kv_heads keys dim"]
) -> Float[Tensor, "batch heads queries keys"]:
    """q_i . k_j of every pair; for definitions."""
    return torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(q.shape[1] // k.shape[1], 1))


def concatenated_pairs(
    q: Float[Tensor, "batch heads queries query_dim"], k: Float[Tensor, "batch kv_heads keys key_dim"]
) -> Float[Tensor, "batch heads queries keys dims"]:
    """[q_i || k_j] of every pair; for definitions."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    size = *q.shape[:3], k.shape[2], -1
    return torch.cat([q[:, :, :, None].expand(size), k[:, :, None].expand(size)], -1)


def distances(q: Tensor, k: Tensor, call: Call) -> Int[Tensor, "queries keys"]:
    """Slot of the query - slot of the key, of every pair; for definitions."""
    i, j = (torch.arange(x.shape[2], device=x.device) for x in (q, k))
    return (i + call.query_start)[:, None] - j


def masked_logits(
    logits: Float[Tensor, "batch heads queries keys"], call: Call
) -> Float[Tensor, "batch heads queries keys"]:
    """The logits with their bias, -inf where a key may not be seen; for definitions."""
    if call.bias is not None:
        i, j = (torch.arange(n, device=logits.device) for n in logits.shape[2:])
        logits = logits + call.bias.logits(i + call.query_start, j).to(logits.dtype)
    return logits.masked_fill(~call.visible(logits, logits.mT), float("-inf"))


def reference_weights(
    logits: Float[Tensor, "batch heads queries keys"], call: Call, *, nulls: float = 0.0
) -> Float[Tensor, "batch heads queries keys"]:
    """exp(z_ij) / (nulls + sum_r exp(z_ir)) over the allowed keys, 0 elsewhere; for definitions."""
    logits = masked_logits(logits, call)
    allowed = ~logits.isneginf()  # NaN stays
    null = logits.new_full((*logits.shape[:3], 1), 0.0 if nulls else torch.finfo(logits.dtype).min)
    top = torch.cat([logits.masked_fill(~allowed, torch.finfo(logits.dtype).min), null], -1).amax(-1, keepdim=True)
    odds = torch.where(allowed, torch.exp(torch.where(allowed, logits - top, 0.0)), 0.0)
    total = odds.sum(-1, keepdim=True) + nulls * torch.exp(-top) if nulls else odds.sum(-1, keepdim=True)
    return odds / torch.where(total == 0, 1.0, total)


def reference_softmax(
    logits: Float[Tensor, "batch heads queries keys"],
    v: Float[Tensor, "batch kv_heads keys value"],
    call: Call,
    *,
    nulls: float = 0.0,
) -> Float[Tensor, "batch heads queries value"]:
    """sum_j exp(z_ij) v_j / (nulls + sum_j exp(z_ij)) over the allowed keys, 0 without any; for definitions."""
    return reference_weights(logits, call, nulls=nulls) @ v.repeat_interleave(logits.shape[1] // v.shape[1], 1)
