"""Softmax for queries that see few keys, linear attention for those that see more."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.attention.kernel import Kernel, ratio, visible
from regard.core import Attended, ScoreBias, State
from regard.engines.sums.passes import accumulator
from regard.engines.tiles import plain, tiled
from regard.errors import ConfigError, nearest
from regard.features import FEATURE_MAPS
from regard.info import Heads, Info, Supports
from regard.patterns import causal, everything
from regard.state import Slots, slot_bytes

MAPS = ("elu_plus_one", "relu", "sigmoid", "softmax_features", "taylor")
FEW = 16
"""up to this many queries on a state, an explicit mask: laying out tiles for every length would cost more"""


@final
class LengthSwitch(Kernel):
    """Softmax where a query sees at most exact_keys keys, linear attention where it sees more.

    out_i = sum_j softmax_j(q_i . k_j / sqrt(dim)) v_j if query i sees at most exact_keys real keys, else
    sum_j phi(q_i) . phi(k_j) v_j / sum_j phi(q_i) . phi(k_j). Causal: query i sees the real keys up to its own; else it
    sees all. The switch is per query: decided by the length of the sequence, as the article has it, one more token
    would rewrite every earlier output.

    Cost: O(exact_keys^2 dim + length features value) time, O(length) memory; with a key mask, which may spread a few
    real keys over many slots, O(length^2 dim) time. State: the sums of linear attention, and the keys and values until
    there are more than exact_keys. Lost: from one query to the next, exactness.

    Args:
        heads: what to serve.
        exact_keys: keys up to which attention is exact; 0 leaves linear attention.
        feature_map: phi: elu_plus_one, relu, sigmoid, softmax_features, taylor.

    Raises:
        ConfigError: a negative exact_keys, an unknown feature map.

    Example:
        >>> import torch
        >>> from regard.core import Heads
        >>> q = torch.randn(1, 2, 40, 8)
        >>> LengthSwitch(Heads(count=2, key_dim=8, causal=True), exact_keys=16)(q, q, q).values.shape
        torch.Size([1, 2, 40, 8])

    Source: exact: Vaswani et al. 2017, Eq. 1; linear: Katharopoulos et al. 2020, Eqs. 4-12; the switch: the
    exact-retrieval article, made causal.
    """

    info = Info(
        title="Softmax, then linear",
        source="Vaswani et al. 2017, Eq. 1, up to a number of keys; Katharopoulos et al. 2020, Eqs. 4-12, beyond",
        supports=Supports(causal=True, bidirectional=True, cross=True, key_mask=True, state=True, prefix=True),
        time=2,
        memory=1,
        state="window",
        sees_content_only=True,
        approximates="softmax",
        knob="exact_keys",
    )

    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"exact_keys": 6},
        {"exact_keys": 9, "feature_map": "taylor"},
    )

    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "its linear weights are products of features, so no term can be added to a logit"
    }

    def __init__(
        self,
        heads: Heads,
        *,
        exact_keys: int = 512,
        feature_map: Literal["elu_plus_one", "relu", "sigmoid", "softmax_features", "taylor"] = "elu_plus_one",
    ) -> None:
        super().__init__(heads, exact_keys=exact_keys, feature_map=feature_map)
        if exact_keys < 0:
            raise ConfigError(f"length_switch needs exact_keys >= 0, got {exact_keys}")
        if feature_map not in MAPS:
            raise ConfigError(f"length_switch has no feature_map={feature_map!r}: {nearest(feature_map, MAPS)}")
        self.exact_keys, self.feature_map = exact_keys, feature_map
        self.query_map = self.key_map = FEATURE_MAPS[feature_map]
        self.features = self.key_map.count(heads.key_dim)

    @classmethod
    def facts(cls, **options: object) -> Info:
        """relu features of a query and of every key may have nothing in common: such a row is 0."""
        return replace(cls.info, rows_sum_to_one=options.get("feature_map") != "relu")

    def by_sums(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None, state: State | None) -> Attended:
        """The exact queries come first, unless hidden keys put them anywhere."""
        if state is None:
            start = self.start(q.shape[0], device=q.device, dtype=q.dtype)["sum"]
            return Attended(self._switched(q, k, v, key_mask, start, 0, None)[0], None, {})
        assert isinstance(state, Slots)
        start, before = state.tensors()["sum"], state.length
        if before > 0 and not state.kept:  # every query of every row sees more than exact_keys
            linear = self.average(q, k, v, start, key_mask=key_mask)
            grown = replace(state, length=before + k.shape[2], steady={"sum": linear.sum})
            return Attended(linear.values, grown, {})
        grown = state.append(key_mask, k=k, v=v) if k.shape[2] else state
        values, total = self._switched(q, k, v, key_mask, start, before, grown)
        grown = grown.with_steady(sum=total)
        real = grown.view().get("key_mask")
        past = grown.length > self.exact_keys if real is None else bool((real.sum(1) > self.exact_keys).all())
        if past:
            grown = grown.keep(torch.empty(0, dtype=torch.long, device=q.device))
        return Attended(values, grown, {})

    def _switched(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        start: Tensor,
        before: int,
        state: Slots | None,
    ) -> tuple[Tensor, Tensor]:
        """The values, and the sums behind this call's keys; a state holds every key, this call's too."""
        queries, every_k, every_v, real = q.shape[2], k, v, key_mask
        if state is not None:
            kept = state.view()
            every_k, every_v, real = kept["k"], kept["v"], kept.get("key_mask")
        if real is None:
            seen = before + k.shape[2]
            if self.heads.causal:
                exact = min(max(self.exact_keys - (seen - queries), 0), queries)
            else:
                exact = queries if seen <= self.exact_keys else 0
            early = seen - queries + exact if self.heads.causal else seen
            first = (q[:, :, :exact], every_k[:, :, :early], every_v[:, :, :early])
            parts = [self._softmax(*first, None, state)] if exact else []
            linear = self.average(q[:, :, exact:], k, v, start, key_mask=None)
            return torch.cat([*parts, linear.values], 2), linear.sum
        linear = self.average(q, k, v, start, key_mask=key_mask)
        count = real.cumsum(1)[:, real.shape[1] - queries :] if self.heads.causal else real.sum(1, keepdim=True)
        values = self._softmax(q, every_k, every_v, real, state)
        return torch.where((count <= self.exact_keys)[:, None, :, None], values, linear.values), linear.sum

    def _softmax(
        self, q: Tensor, k: Tensor, v: Tensor, real: Bool[Tensor, "batch keys"] | None, state: Slots | None
    ) -> Tensor:
        if state is None or q.shape[2] > FEW:
            pattern = causal if self.heads.causal else everything
            return tiled(q, k, v, pattern, key_mask=real)[0]
        allowed = visible(q, k, self.heads.causal, real)
        return plain(q, k, v, allowed, scale=self.heads.key_dim**-0.5)[0]

    def initial_state(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Slots:
        """Empty sums and no slots."""
        shape = (batch, self.heads.kv_heads, 0)
        slots = Slots.empty(
            k=torch.empty(*shape, self.heads.key_dim, device=device, dtype=dtype),
            v=torch.empty(*shape, self.heads.value_width, device=device, dtype=dtype),
        )
        return slots.with_steady(sum=self.start(batch, device=device, dtype=dtype)["sum"])

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """The sums, and keys and values while there are at most exact_keys."""
        heads = self.heads
        sums = batch * heads.kv_heads * self.features * (heads.value_width + 1) * accumulator(dtype).itemsize
        slots = length if length <= self.exact_keys else 0
        return sums + slot_bytes(heads.kv_heads * (heads.key_dim + heads.value_width), slots, dtype, batch)

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
        """Both branches for every query, and the count that decides."""
        del bias, marks
        k, v = (x.repeat_interleave(self.heads.group, 1) for x in (k, v))
        seen = visible(q, k, self.heads.causal, key_mask)
        logits = (torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5).masked_fill(~seen, float("-inf"))
        top = logits.amax(-1, keepdim=True)
        odds = torch.exp(logits - torch.where(top.isneginf(), 0, top))
        linear = (self.query_map(q) @ self.key_map(k).mT).masked_fill(~seen, 0)
        weights = torch.where(seen.sum(-1, keepdim=True) <= self.exact_keys, odds, linear)
        return ratio(weights @ v, weights.sum(-1, keepdim=True))
