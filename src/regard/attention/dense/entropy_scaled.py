"""Softmax whose temperature falls with the number of keys."""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from regard.attention.dense import Dense, inner_products, masked_logits, reference_softmax
from regard.core.attention import Attended, Call, accumulation_dtype
from regard.core.info import Info, Supports
from regard.engines.dense import Rule, publish, softmax, visible_count


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

    Example:
        >>> from regard import Heads, attend
        >>> q, k, v = torch.randn(3, 1, 2, 64, 8)
        >>> mechanism = EntropyScaled(Heads(count=2, key_dim=8), base_length=64)
        >>> torch.allclose(mechanism(q, k, v).values, attend(q, k, v, "softmax"), atol=1e-6)
        True

    Source: Su 2021, kexue.fm 8823; `softmax_plus` of bert4keras, used in GAU-alpha.
    """

    default_info = Info(
        title="Entropy-invariant softmax",
        source="Su 2021, kexue.fm 8823; softmax_plus of bert4keras",
        supports=Supports.all(but=("marks",)),
        state="length",
        sees_content_only=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"base_length": 4, "least_keys": 3})

    base_length: Annotated[int, Ge(2)] = 512
    """n_0, the number of keys at which nothing changes; 512 is the source's"""
    least_keys: Annotated[int, Ge(1)] = 1
    """rows that see fewer keys count as many; 1: no clamp, and a query with one key has scale 0, which changes nothing;
    16 is that of bert4keras"""

    def setup(self) -> None:
        base_length, least_keys, factor = self.base_length, self.least_keys, self.heads.key_dim**-0.5

        def normalise(logits: Tensor) -> Tensor:
            scaled = logits * ratio(visible_count(logits), base_length, least_keys)
            # the ratio may be 0, and 0 times -inf is NaN
            return softmax(scaled.masked_fill(logits == float("-inf"), float("-inf")))

        self.rule = publish(
            f"entropy_scaled({base_length}, {least_keys}, {factor!r})",
            Rule(lambda q, k: (q * factor) @ k.mT, normalise),
        )

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Without a bias the scale goes into the queries, and the fused kernel does the rest."""
        if call.bias is not None:
            return super().average(q, k, v, call)
        wide = accumulation_dtype(q.dtype)
        scale = ratio(self.counts(q, k, call).to(wide), self.base_length, self.least_keys)[:, None, :, None]
        return self.dot_product((q.to(wide) * scale).to(q.dtype), k, v, call, scale=self.heads.key_dim**-0.5)

    def counts(self, q: Tensor, k: Tensor, call: Call) -> Tensor:
        """The keys that each query may see: (batch or 1, queries or 1)."""
        real = torch.ones(1, k.shape[2], dtype=torch.bool, device=k.device) if call.key_mask is None else call.key_mask
        return real.cumsum(1)[:, k.shape[2] - q.shape[2] :] if call.causal else real.sum(1, keepdim=True)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every logit, times the ratio of the logarithms, then the softmax of each row."""
        logits = masked_logits(inner_products(q, k) / q.shape[-1] ** 0.5, call)
        allowed = ~logits.isneginf()
        count = allowed.sum(-1, keepdim=True).clamp(min=self.least_keys).to(logits.dtype)
        scaled = torch.where(allowed, logits, 0.0) * torch.log(count) / math.log(self.base_length)
        return reference_softmax(scaled.masked_fill(~allowed, float("-inf")), v, call._replace(bias=None))
