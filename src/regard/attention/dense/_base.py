"""The dense template: every query against every key that it may see."""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from regard.attention.dense._chunks import chunked
from regard.bias import ScoreBias
from regard.core import Attended, Attention
from regard.state import Slots, State, slot_bytes


class Dense(Attention):
    """Template: weights = normalise(score(q, k) + bias) over the allowed keys, values = weights v.

    A mechanism publishes its score and normaliser as a `Rule` and says in `project` what the score reads. The state
    keeps projected keys, so that decoding projects each key once.
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
        k, v = (x.repeat_interleave(self.heads.group, 1) if self.heads.group > 1 else x for x in (k, v))
        return chunked(
            self.rule,
            q,
            k,
            v,
            self.weights(),
            causal=self.heads.causal,
            key_mask=key_mask,
            bias=bias,
            dropout=self.heads.dropout if self.training else 0.0,
        )

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """No slots."""
        shape = (batch, self.heads.kv_heads, 0)
        return Slots.empty(
            k=torch.empty(*shape, self.key_width, device=device, dtype=dtype),
            v=torch.empty(*shape, self.heads.value_width, device=device, dtype=dtype),
        )

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """length x kv_heads x (projected key + value)."""
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
        """The definition; see `visible` and `reference_softmax`."""


def remember(
    k: Tensor, v: Tensor, key_mask: Tensor | None, state: State | None
) -> tuple[Tensor, Tensor, Tensor | None, State | None]:
    """Append to the state, if there is one: the keys, values and mask of every slot, and the new state."""
    if state is None:
        return k, v, key_mask, None
    assert isinstance(state, Slots)
    grown = state.append(key_mask, k=k, v=v)
    kept = grown.view()
    return kept["k"], kept["v"], kept.get("key_mask"), grown


def scaled_dot_product(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    *,
    scale: float,
    causal: bool,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    bias: Float[Tensor, "b h queries keys"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads queries value"]:
    """softmax(scale q k^T + bias) v by torch's fused kernel, in forms that keep the kernel from materialising weights.

    The kernel wants keys and values of one width, so the narrower ones get zero columns. Its own causal flag is
    upper-left and excludes a mask: it serves square calls, with a key mask as one more column of logits; other causal
    calls take a mask of queries x keys. A row without keys gives 0 because values under the mask are 0.

    Args:
        causal: lower-right.
        key_mask: True = keep; keys and values under it are 0.
        bias: logits to add; the kernel materialises all logits if they need gradients.
        dropout: of the weights; the kernel then materialises them.
    """
    queries, keys = q.shape[2], k.shape[2]
    width, wide = v.shape[-1], max(q.shape[-1], v.shape[-1])
    shared = q.shape[1] != k.shape[1]
    causal = causal and queries > 1
    if causal and queries == keys and bias is None and key_mask is not None:
        # q.k + 1 * (0 or -inf): the mask costs one column instead of queries x keys.
        column = torch.zeros(key_mask.shape, dtype=k.dtype, device=k.device).masked_fill(~key_mask, float("-inf"))
        q = torch.cat([q, q.new_ones(*q.shape[:3], 1)], -1)
        k = torch.cat([k, column[:, None, :, None].expand(-1, k.shape[1], -1, -1)], -1)
        key_mask, wide = None, max(q.shape[-1], wide)
    if q.shape[-1] < wide:
        q, k = F.pad(q, (0, wide - q.shape[-1])), F.pad(k, (0, wide - k.shape[-1]))
    if width < wide:
        v = F.pad(v, (0, wide - width))
    square = causal and queries == keys and bias is None
    mask = None if square else _mask(queries, keys, causal, key_mask, bias, q)
    values = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=square, scale=scale, enable_gqa=shared
    )
    return values if width == wide else values[..., :width]


def _mask(
    queries: int, keys: int, causal: bool, key_mask: Tensor | None, bias: Tensor | None, like: Tensor
) -> Tensor | None:
    """What may be seen, as the kernel takes it: boolean, or logits."""
    allowed = None if key_mask is None else key_mask[:, None, None, :]
    if causal:
        lower = torch.ones(queries, keys, dtype=torch.bool, device=like.device).tril(keys - queries)
        allowed = lower if allowed is None else allowed & lower
    if bias is None:
        return allowed
    bias = bias.to(like.dtype)
    return bias if allowed is None else torch.where(allowed, bias, float("-inf"))


def visible(
    queries: int, keys: int, *, causal: bool, key_mask: Tensor | None, device: torch.device | None = None
) -> Bool[Tensor, "batch 1 queries keys"]:
    """The allowed pairs as one tensor, for references."""
    i, j = torch.arange(queries, device=device)[:, None], torch.arange(keys, device=device)[None]
    allowed = (j <= i + keys - queries)[None, None] if causal else (i >= 0)[None, None] & (j >= 0)
    return allowed if key_mask is None else allowed & key_mask[:, None, None, :]


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
    queries, keys = logits.shape[2:]
    if keys == 0:
        return v.new_zeros(*logits.shape[:3], v.shape[-1])
    allowed = visible(queries, keys, causal=causal, key_mask=key_mask, device=v.device)
    if bias is not None:
        first = keys - queries if causal else 0
        slots = torch.arange(keys, device=v.device)
        logits = logits + bias.logits(torch.arange(first, first + queries, device=v.device), slots).to(logits.dtype)
    logits = logits.masked_fill(~allowed, float("-inf"))
    top = logits.amax(-1, keepdim=True).clamp(min=0.0 if nulls else torch.finfo(logits.dtype).min)
    odds = torch.exp(logits - top)
    total = odds.sum(-1, keepdim=True) + (nulls * torch.exp(-top) if nulls else 0.0)
    weights = (odds / total).nan_to_num(0.0)
    return weights @ v.repeat_interleave(logits.shape[1] // v.shape[1], 1)
