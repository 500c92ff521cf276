"""The slots of small keys, and the last ones."""

from typing import ClassVar, final

import torch
from torch import Tensor

from regard.core.attention import Attention, generator
from regard.core.errors import UnsupportedError
from regard.memory.caches._base import CacheState, Recent


@final
class KeyNorm(Recent):
    """Drops the largest ||k|| outside of the newest slots: in trained decoders, much is given to small keys.

    It reads no query. The norm is that of the key as it is kept, which rotary positions leave alone: so that one token
    has one norm wherever it is, norms that agree to 12 bits are equal.

    Source: Devoto et al. 2024, A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression, section 3.
    """

    title: ClassVar[str] = "small keys"

    def check(self, attention: Attention) -> None:
        super().check(attention)
        if not _keeps_keys(attention):
            raise UnsupportedError(
                f"cache key_norm reads the norms of keys, and {attention.info.title} keeps something else for them"
            )

    def worth(self, state: CacheState) -> Tensor:
        """Less the larger the key."""
        norms = torch.linalg.vector_norm(state.slots.view()["k"].double(), dim=-1)
        digits, power = torch.frexp(norms)
        norms = torch.ldexp((digits * 4096).round(), power)
        return (-norms).masked_fill(self.staying(state), float("inf"))


@torch.no_grad()
def _keeps_keys(attention: Attention) -> bool:
    """Whether the state has keys as they were given: not projected, normalised, rounded, or none."""
    heads, like, draw = attention.heads, next(attention.parameters(), torch.empty(0)), generator(0, "cache", "key_norm")
    shapes = (heads.count, heads.query_width), (heads.kv_heads, heads.key_dim), (heads.kv_heads, heads.value_width)
    q, k, v = (torch.randn(1, count, 1, width, generator=draw).to(like) for count, width in shapes)
    state = attention.initial_state(1, device=like.device, dtype=like.dtype)
    kept = attention(q, k, v, state=state).state
    assert kept is not None
    found = kept.tensors().get("k")
    return found is not None and torch.equal(found, k)
