"""The dense template: every query against every key that it may see."""

from abc import abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.bias import ScoreBias
from regard.core import Attended, Attention
from regard.engines.dense import chunked
from regard.engines.dense.fused import expand_heads
from regard.state import Slots, State, slot_bytes


class Dense(Attention):
    """Template: weights = normalise(score(q, k) + bias) over the allowed keys, values = weights v.

    A mechanism publishes its score and normaliser as a `Rule`, and says in `project` and `weights` what they read. The
    state keeps projected keys, so that decoding projects each key once.
    """

    rule: str
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

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None,
        bias: ScoreBias | None,
        marks: Tensor | None,
        state: State | None,
    ) -> Attended:
        """Project, remember, average."""
        del marks
        q, k = self.project(q, k)
        k, v, key_mask, state = remember(k, v, key_mask, state)
        return Attended(self.average(q, k, v, key_mask=key_mask, bias=bias), state, {})

    def average(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None, bias: ScoreBias | None) -> Tensor:
        """The values over every key, from projected q and k."""
        count = self.heads.count
        return chunked(
            self.rule,
            q,
            expand_heads(k, count),
            expand_heads(v, count),
            self.weights(),
            causal=self.heads.causal,
            key_mask=key_mask,
            bias=bias,
            dropout=self.dropped,
        )

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """No slots."""
        if not self.info.supports.state:
            self.refuse("state", "state")
        shape = (batch, self.heads.kv_heads, 0)
        return Slots.empty(
            k=torch.empty(*shape, self.key_width, device=device, dtype=dtype),
            v=torch.empty(*shape, self.heads.value_width, device=device, dtype=dtype),
        )

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """Length x kv_heads x (projected key + value)."""
        if not self.info.supports.state:
            self.refuse("state", "state")
        return slot_bytes(self.heads.kv_heads * (self.key_width + self.heads.value_width), length, dtype, batch)

    @abstractmethod
    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        bias: ScoreBias | None = None,
        marks: Tensor | None = None,
    ) -> Tensor:
        """The definition; `reference_softmax` turns logits into values."""


def remember(
    k: Tensor, v: Tensor, key_mask: Tensor | None, state: State | None
) -> tuple[Tensor, Tensor, Tensor | None, State | None]:
    """Append to the state, if there is one: the keys, values and mask of every slot, and the new state."""
    if state is None:
        return k, v, key_mask, None
    assert isinstance(state, Slots)
    grown = state.append(key_mask, k=k, v=v) if k.shape[2] else state
    kept = grown.view()
    return kept["k"], kept["v"], kept.get("key_mask"), grown


def real_keys(k: Tensor, key_mask: Tensor | None) -> Int[Tensor, "batch 1 1 1"]:
    """The keys of a whole call that are not hidden, at least 1: what published forms divide by, future included."""
    if key_mask is None:
        return torch.full((1, 1, 1, 1), max(k.shape[2], 1), device=k.device)
    return key_mask.sum(1).clamp(min=1)[:, None, None, None]


def visible(
    queries: int, keys: int, *, causal: bool, key_mask: Tensor | None, device: torch.device
) -> Bool[Tensor, "batch 1 queries keys"]:
    """The allowed pairs as one tensor, for references."""
    i, j = torch.arange(queries, device=device)[:, None], torch.arange(keys, device=device)[None]
    allowed = (j <= i + keys - queries if causal else (i >= 0) & (j >= 0))[None, None]
    return allowed if key_mask is None else allowed & key_mask[:, None, None, :]


def masked_logits(
    logits: Float[Tensor, "batch heads queries keys"],
    *,
    causal: bool,
    key_mask: Tensor | None,
    bias: ScoreBias | None,
) -> Float[Tensor, "batch heads queries keys"]:
    """The logits with their bias, -inf where a key may not be seen; for references."""
    queries, keys = logits.shape[2:]
    if bias is not None:
        first = keys - queries if causal else 0
        i, j = (torch.arange(at, at + n, device=logits.device) for at, n in ((first, queries), (0, keys)))
        logits = logits + bias.logits(i, j).to(logits.dtype)
    allowed = visible(queries, keys, causal=causal, key_mask=key_mask, device=logits.device)
    return logits.masked_fill(~allowed, float("-inf"))


def reference_softmax(
    logits: Float[Tensor, "batch heads queries keys"],
    v: Float[Tensor, "batch kv_heads keys value"],
    *,
    causal: bool,
    key_mask: Tensor | None,
    bias: ScoreBias | None = None,
    nulls: float = 0.0,
) -> Float[Tensor, "batch heads queries value"]:
    """sum_j exp(z_ij) v_j / (nulls + sum_j exp(z_ij)) over the allowed keys, 0 without any; for references."""
    logits = masked_logits(logits, causal=causal, key_mask=key_mask, bias=bias)
    allowed = logits > float("-inf")
    null = logits.new_full((*logits.shape[:3], 1), 0.0 if nulls else torch.finfo(logits.dtype).min)
    top = torch.cat([logits.masked_fill(~allowed, torch.finfo(logits.dtype).min), null], -1).amax(-1, keepdim=True)
    odds = torch.where(allowed, torch.exp(torch.where(allowed, logits - top, 0.0)), 0.0)
    total = odds.sum(-1, keepdim=True) + nulls * torch.exp(-top) if nulls else odds.sum(-1, keepdim=True)
    weights = odds / torch.where(total == 0, 1.0, total)
    return weights @ v.repeat_interleave(logits.shape[1] // v.shape[1], 1)
