"""Softmax for queries that see few keys, linear attention for those that see more."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Self, final

import torch
from annotated_types import Ge
from jaxtyping import Bool
from torch import Tensor

from regard.attention.kernel import Kernel, defined_features, ratio
from regard.attention.kernel._exact import EXPLICIT_QUERIES, exact_average
from regard.core.attention import Attended, Call
from regard.core.info import Info, Supports
from regard.core.state import Entry, Slots, State, per_slot
from regard.patterns import causal, everything


class KeptOrDropped(Slots):
    """Every slot, or none once every row sees too many; beside the sums."""

    def where(self, rows: Tensor, other: Self) -> Self:
        """As `Slots.where`; a row whose slots were dropped has as many empty ones, real, so that they stay too many."""
        kept = max(self.kept, other.kept)
        return super(KeptOrDropped, self._with(kept)).where(rows, other._with(kept))

    def _with(self, kept: int) -> Self:
        if self.kept == kept:
            return self
        empty = {name: x for name, x in self.view().items() if name != "key_mask"}
        empty = {name: x.new_zeros(*x.shape[:2], kept, x.shape[3]) for name, x in empty.items()}
        return replace(self.append(**empty), length=self.length)


@final
class LengthSwitch(Kernel):
    """Softmax where a query sees at most exact_keys keys, linear attention where it sees more.

    out_i = sum_j softmax_j(q_i . k_j / sqrt(dim)) v_j if query i sees at most exact_keys real keys, else
    sum_j phi(q_i) . phi(k_j) v_j / sum_j phi(q_i) . phi(k_j). Causal: query i sees the real keys up to its own; else it
    sees all. The switch is per query: decided by the length of the sequence, as the article has it, one more token
    would rewrite every earlier output.

    Cost: O(exact_keys^2 dim + length features value) time, O(length) memory; with a key mask, which may spread a few
    real keys over many slots, O(length^2 dim) time. State: the sums of linear attention, and the keys and values until
    there are more than exact_keys. Lost: from one query to the next, exactness; beyond, keys as far below as `linear`
    says weigh nothing. Compiled, the linear side is made for every query, and not causal the softmax over the first
    exact_keys keys, so that one graph serves every length.

    Example:
        >>> import torch
        >>> from regard import attend
        >>> x = torch.arange(4.0).reshape(1, 1, 4, 1)
        >>> switched = attend(x, x, x, "length_switch(exact_keys=2)", causal=True)
        >>> torch.isclose(switched, attend(x, x, x, causal=True)).flatten().tolist()  # the third query sees a third key
        [True, True, False, False]

    Source: exact: Vaswani et al. 2017, Eq. 1; linear: Katharopoulos et al. 2020, Eqs. 4-12; the switch: the
    exact-retrieval article, made causal.
    """

    default_info = Info(
        title="Softmax, then linear",
        source="Vaswani et al. 2017, Eq. 1, up to a number of keys; Katharopoulos et al. 2020, Eqs. 4-12, beyond",
        supports=Supports.all(but=("bias", "marks", "dropout")),
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

    exact_keys: Annotated[int, Ge(0)] = 512
    """keys up to which attention is exact; 0 leaves linear attention"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """relu features of a query and of every key may have nothing in common: such a row is 0."""
        return replace(cls.default_info, rows_sum_to_one=options["feature_map"] != "relu")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The exact queries come first, unless hidden keys put them anywhere."""
        state, mask = call.state, call.key_mask
        if state is None:
            return Attended(self._switched(q, k, v, mask, None, None)[0])
        assert isinstance(state, Slots)
        sums = state.steady["sum"]
        if call.past and not state.kept:  # every query of every row sees more than exact_keys
            linear = self.average(q, k, v, sums, key_mask=mask)
            return Attended(linear.values, replace(state, length=call.past + k.shape[2], steady={"sum": linear.sum}))
        grown = state.append(mask, k=k, v=v)
        values, total = self._switched(q, k, v, mask, sums, grown)
        grown = grown.with_steady(sum=total)
        real = grown.view().get("key_mask")
        past = grown.length > self.exact_keys if real is None else bool((real.sum(1) > self.exact_keys).all())
        return Attended(values, grown.keep(torch.empty(0, dtype=torch.long, device=q.device)) if past else grown)

    def _switched(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, sums: Tensor | None, state: Slots | None
    ) -> tuple[Tensor, Tensor]:
        """The values, and the sums behind this call's keys; a state holds every key, this call's too."""
        queries, every_k, every_v, real = q.shape[2], k, v, key_mask
        if state is not None:
            kept = state.view()
            every_k, every_v, real = kept["k"], kept["v"], kept.get("key_mask")
        if real is None:
            seen = every_k.shape[2]
            if torch.compiler.is_compiling() and state is None:
                return self._both(q, k, v)
            if self.heads.causal:
                exact = min(max(self.exact_keys - (seen - queries), 0), queries)
            else:
                exact = queries if seen <= self.exact_keys else 0
            early = seen - queries + exact if self.heads.causal else seen
            first = (q[:, :, :exact], every_k[:, :, :early], every_v[:, :, :early])
            parts = [self._softmax(*first, None, state)] if exact else []
            linear = self.average(q[:, :, exact:], k, v, sums, key_mask=None)
            return torch.cat([*parts, linear.values], 2), linear.sum
        linear = self.average(q, k, v, sums, key_mask=key_mask)
        count = real.cumsum(1)[:, real.shape[1] - queries :] if self.heads.causal else real.sum(1, keepdim=True)
        values = self._softmax(q, every_k, every_v, real, state)
        return torch.where((count <= self.exact_keys)[:, None, :, None], values, linear.values), linear.sum

    def _both(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As `_switched`, as a graph that serves both sides: what it makes in vain reads at most exact_keys keys."""
        linear, keys = self.average(q, k, v, None, key_mask=None), k.shape[2]
        if self.heads.causal:
            exact = min(max(self.exact_keys - (keys - q.shape[2]), 0), q.shape[2])
            early = keys - q.shape[2] + exact
            first = self._softmax(q[:, :, :exact], k[:, :, :early], v[:, :, :early], None, None)
            return torch.cat([first, linear.values[:, :, exact:]], 2), linear.sum
        few = min(keys, self.exact_keys)
        values = self._softmax(q, k[:, :, :few], v[:, :, :few], None, None)
        return torch.where(torch.full((), keys, device=q.device) <= self.exact_keys, values, linear.values), linear.sum

    def _softmax(
        self, q: Tensor, k: Tensor, v: Tensor, real: Bool[Tensor, "batch keys"] | None, state: Slots | None
    ) -> Tensor:
        explicit = state is not None and q.shape[2] <= EXPLICIT_QUERIES
        pattern = causal if self.heads.causal else everything
        return exact_average(q, k, v, pattern, real, explicit=explicit)[0]

    def state_layout(self) -> dict[str, Entry]:
        """The sums, and keys and values."""
        heads = self.heads
        slots = {"k": per_slot(heads.kv_heads, heads.key_dim), "v": per_slot(heads.kv_heads, heads.value_width)}
        return slots | super().state_layout()

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        state = super().initial_state(batch, device=device, dtype=dtype)
        return KeptOrDropped(**vars(state)) if self.impl != "reference" else state

    def kept_slots(self, length: int) -> int:
        """All while there are at most exact_keys, then none."""
        return length if length <= self.exact_keys else 0

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Both branches for every query, and the count that decides."""
        k, v = (x.repeat_interleave(self.heads.group, 1) for x in (k, v))
        seen = call.visible(q, k)
        logits = (torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5).masked_fill(~seen, float("-inf"))
        top = logits.amax(-1, keepdim=True)
        odds = torch.exp(logits - torch.where(top.isneginf(), 0, top))
        linear = (defined_features(self.feature_map, q) @ defined_features(self.feature_map, k).mT).masked_fill(
            ~seen, 0
        )
        weights = torch.where(seen.sum(-1, keepdim=True) <= self.exact_keys, odds, linear)
        return ratio(weights @ v, weights.sum(-1, keepdim=True))
