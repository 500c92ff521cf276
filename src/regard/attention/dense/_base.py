"""The dense template: every query against every key that it may see."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.core import Attended, Attention, Call
from regard.engines.dense.chunks import chunked
from regard.engines.dense.fused import expand_heads
from regard.options import weight
from regard.state import Entry, Slots, per_slot


class Dense(Attention):
    """Template: weights = normalise(score(q, k) + bias) over the allowed keys, values = weights v.

    A mechanism publishes its score and normaliser as a `Rule` in `setup`, and says in `project` and `weights` what they
    read. The state keeps projected keys, so that decoding projects each key once.
    """

    rule: str = weight()
    """what `publish` returned"""

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """What the score reads instead of q (batch, heads, ...) and k (batch, kv_heads, ...)."""
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
        return self.average(q, k, v, call)

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The average over every key, from projected q and k."""
        k, v = expand_heads(k, self.heads.count), expand_heads(v, self.heads.count)
        return Attended(chunked(self.rule, q, k, v, call, self.weights(), dropout=self.dropped), call.state)

    def state_layout(self) -> dict[str, Entry]:
        """Every projected key, and every value."""
        heads = self.heads
        return {"k": per_slot(heads.kv_heads, self.key_width), "v": per_slot(heads.kv_heads, heads.value_width)}


def remember(k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Call]:
    """Keys and values of every slot, and the call with their mask and the state behind them."""
    if call.state is None:
        return k, v, call
    assert isinstance(call.state, Slots)
    grown = call.state.append(call.key_mask, k=k, v=v) if k.shape[2] else call.state
    kept = grown.view()
    return kept["k"], kept["v"], replace(call, key_mask=kept.get("key_mask"), state=grown)


def real_keys(k: Tensor, key_mask: Tensor | None) -> Int[Tensor, "batch 1 1 1"]:
    """The keys of a whole call that are not hidden, at least 1: what published forms divide by, future included."""
    if key_mask is None:
        return torch.full((1, 1, 1, 1), max(k.shape[2], 1), device=k.device)
    return key_mask.sum(1).clamp(min=1)[:, None, None, None]


def masked_logits(
    logits: Float[Tensor, "batch heads queries keys"], call: Call
) -> Float[Tensor, "batch heads queries keys"]:
    """The logits with their bias, -inf where a key may not be seen; for definitions."""
    if call.bias is not None:
        i, j = (torch.arange(n, device=logits.device) for n in logits.shape[2:])
        logits = logits + call.bias.logits(i + call.query_start, j).to(logits.dtype)
    return logits.masked_fill(~call.visible(logits, logits.mT), float("-inf"))


def reference_softmax(
    logits: Float[Tensor, "batch heads queries keys"],
    v: Float[Tensor, "batch kv_heads keys value"],
    call: Call,
    *,
    nulls: float = 0.0,
) -> Float[Tensor, "batch heads queries value"]:
    """sum_j exp(z_ij) v_j / (nulls + sum_j exp(z_ij)) over the allowed keys, 0 without any; for definitions."""
    logits = masked_logits(logits, call)
    allowed = logits > float("-inf")
    null = logits.new_full((*logits.shape[:3], 1), 0.0 if nulls else torch.finfo(logits.dtype).min)
    top = torch.cat([logits.masked_fill(~allowed, torch.finfo(logits.dtype).min), null], -1).amax(-1, keepdim=True)
    odds = torch.where(allowed, torch.exp(torch.where(allowed, logits - top, 0.0)), 0.0)
    total = odds.sum(-1, keepdim=True) + nulls * torch.exp(-top) if nulls else odds.sum(-1, keepdim=True)
    weights = odds / torch.where(total == 0, 1.0, total)
    return weights @ v.repeat_interleave(logits.shape[1] // v.shape[1], 1)
