"""Softmax whose temperature falls with the number of keys."""

import math
from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from regard.attention.dense import Dense, masked_logits, reference_softmax
from regard.bias import ScoreBias
from regard.engines.dense import Rule, publish, softmax, visible_count
from regard.engines.dense.fused import dot_product
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports


def ratio(count: Tensor, base_length: int, least_keys: int) -> Tensor:
    """log l / log n_0."""
    return count.clamp(min=least_keys).log() / math.log(base_length)


@final
class EntropyScaled(Dense):
    """Entropy-invariant softmax: p_ij = softmax_j((log l_i / log n_0) z_ij), z_ij = q_i . k_j / sqrt(d).

    l_i counts the keys that query i may see (i + 1 in causal use). With l_i = n_0 it is `softmax`; the entropy of a row
    grows less with the number of keys. A bias is added to z_ij, so that it is scaled too (as in bert4keras); where it
    is -inf the key does not count.

    Cost: as `softmax`; with a bias, memory of one chunk of queries x keys. State: every key and value.

    Args:
        heads: what to serve.
        base_length: n_0, the number of keys at which nothing changes; 512 is the source's.
        least_keys: rows that see fewer keys count as many. 1: no clamp, and a query with one key has scale 0, which
            changes nothing; 16 is that of bert4keras.

    Raises:
        ConfigError: `base_length` below 2, or `least_keys` below 1.

    Example:
        >>> from regard import Heads, attend
        >>> q, k, v = torch.randn(3, 1, 2, 64, 8)
        >>> mechanism = EntropyScaled(Heads(count=2, key_dim=8), base_length=64)
        >>> torch.allclose(mechanism(q, k, v).values, attend(q, k, v, "softmax"), atol=1e-6)
        True

    Source: Su 2021, kexue.fm 8823; `softmax_plus` of bert4keras, used in GAU-alpha.
    """

    info = Info(
        title="Entropy-invariant softmax",
        source="Su 2021, kexue.fm 8823; softmax_plus of bert4keras",
        supports=Supports(
            causal=True,
            bidirectional=True,
            cross=True,
            key_mask=True,
            bias=True,
            state=True,
            prefix=True,
            dropout=True,
        ),
        state="length",
        sees_content_only=True,
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"base_length": 4, "least_keys": 3})

    def __init__(self, heads: Heads, *, base_length: int = 512, least_keys: int = 1) -> None:
        super().__init__(heads, base_length=base_length, least_keys=least_keys)
        if base_length < 2 or least_keys < 1:
            raise ConfigError(
                f"entropy_scaled needs base_length of at least 2 and least_keys of at least 1, "
                f"got {base_length=}, {least_keys=}"
            )
        self.base_length, self.least_keys = base_length, least_keys

        def normalise(logits: Tensor) -> Tensor:
            scaled = logits * ratio(visible_count(logits), base_length, least_keys)
            # the ratio may be 0, and 0 times -inf is NaN
            return softmax(scaled.masked_fill(logits == float("-inf"), float("-inf")))

        factor = heads.key_dim**-0.5
        self.rule = publish(
            f"entropy_scaled({base_length}, {least_keys}, {factor!r})",
            Rule(lambda q, k: (q * factor) @ k.mT, normalise),
        )

    def average(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None, bias: ScoreBias | None) -> Tensor:
        """Without a bias the scale goes into the queries, and the fused kernel does the rest."""
        if bias is not None:
            return super().average(q, k, v, key_mask=key_mask, bias=bias)
        wide = torch.promote_types(q.dtype, torch.float32)
        scale = ratio(self.counts(q, k, key_mask).to(wide), self.base_length, self.least_keys)[:, None, :, None]
        return dot_product(
            (q.to(wide) * scale).to(q.dtype),
            k,
            v,
            scale=self.heads.key_dim**-0.5,
            causal=self.heads.causal,
            key_mask=key_mask,
            dropout=self.dropped,
        )

    def counts(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
        """The keys that each query may see: (batch or 1, queries or 1)."""
        queries, keys = q.shape[2], k.shape[2]
        real = torch.ones(1, keys, dtype=torch.bool, device=k.device) if key_mask is None else key_mask
        return real.cumsum(1)[:, keys - queries :] if self.heads.causal else real.sum(1, keepdim=True)

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
        """Every logit, times the ratio of the logarithms, then the softmax of each row."""
        del marks
        logits = torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(self.heads.group, 1)) / q.shape[-1] ** 0.5
        logits = masked_logits(logits, causal=self.heads.causal, key_mask=key_mask, bias=bias)
        allowed = logits > float("-inf")
        count = allowed.sum(-1, keepdim=True).clamp(min=self.least_keys).to(logits.dtype)
        scaled = torch.where(allowed, logits, 0.0) * torch.log(count) / math.log(self.base_length)
        return reference_softmax(scaled.masked_fill(~allowed, float("-inf")), v, causal=False, key_mask=None)
