"""The kernel family: weights phi(q_i) . phi(k_j), so that keys and values are summed once instead of once per query."""

import torch
from torch import Tensor

from regard.core import Attended, Attention, ScoreBias, State, Summary
from regard.engines.sums.engine import kernel_average
from regard.engines.sums.forms import FORMS, average_by
from regard.engines.sums.passes import accumulator, has_log_scale
from regard.engines.sums.step import Averaged
from regard.features import FeatureMap

__all__ = ["Kernel", "ratio", "visible"]


class Kernel(Attention):
    """Template: out_i = sum_j phi_q(q_i) . phi_k(k_j) v_j / sum_j phi_q(q_i) . phi_k(k_j).

    A subclass sets the fields below in `__init__`. The state is constant: `sum` (batch, kv_heads, features, value + 1),
    whose last column is the normaliser's, and `top` (batch, kv_heads) where the key map has a log scale. Both are held
    in at least float32.
    """

    query_map: FeatureMap
    key_map: FeatureMap
    features: int
    scale: float = 1.0
    """multiplies q and k before the feature maps"""
    normalise: bool = True
    impl: str = "auto"
    weighted: bool = False
    """whether calls pass log weights of their own (decay, gates)"""

    def projection_now(self) -> Tensor | None:
        """The projection of this call, (kv_heads, rows, dim), for random maps."""
        return None

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
        del bias, marks
        if self.impl == "reference":
            with torch.autocast(q.device.type, enabled=False):
                summed = (x.to(accumulator(x.dtype)) for x in (q, k, v))
                return Attended(self.reference(*summed, key_mask=key_mask).to(q.dtype), None, {})
        return self.by_sums(q, k, v, key_mask=key_mask, state=state)

    def by_sums(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None, state: State | None) -> Attended:
        """The algorithm, wherever `impl` does not ask for the definition."""
        past = self.past(state, q)
        result = self.average(q, k, v, past["sum"], past.content.get("top"), key_mask=key_mask)
        return Attended(result.values, None if state is None else self.after(past, result, k.shape[2]), {})

    def average(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sum: Tensor,
        top: Tensor | None = None,
        *,
        key_mask: Tensor | None,
        log_weight: Tensor | None = None,
        rotation: Tensor | None = None,
        normalise: bool | None = None,
    ) -> Averaged:
        """The average under this mechanism's maps: by the kernel operator, or in the form that `impl` names."""
        normalise = self.normalise if normalise is None else normalise
        if self.impl in ("triton", "fla"):
            from regard.engines.gpu import linear

            maps, rest = (self.query_map, self.key_map), {"key_mask": key_mask, "rotation": rotation}
            return linear.average(self.impl, q, k, v, sum, maps, normalise=normalise, **rest)
        if self.impl in FORMS:
            assert top is None, "these forms have no log weights"
            maps, causal = (self.query_map, self.key_map), self.heads.causal
            return average_by(self.impl, q, k, v, sum, maps, key_mask, rotation, causal, normalise)
        return kernel_average(
            q,
            k,
            v,
            sum,
            top,
            query_map=self.query_map.name,
            key_map=self.key_map.name,
            causal=self.heads.causal,
            normalise=normalise,
            scale=self.scale,
            projection=self.projection_now(),
            log_weight=log_weight,
            key_mask=key_mask,
            rotation=rotation,
        )

    def past(self, state: State | None, q: Tensor) -> Summary:
        """The state given, or the one before the first key."""
        if state is None:
            state = self.start(q.shape[0], device=q.device, dtype=q.dtype)
        assert isinstance(state, Summary)
        return state

    def after(self, past: Summary, result: Averaged, keys: int) -> Summary:
        """The state behind this call's keys."""
        content = {"sum": result.sum}
        if "top" in past.content:
            content["top"] = result.top
        return Summary(content, past.length + keys)

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> Summary:
        if not self.info.supports.state:
            self.refuse("state", "state")
        return self.start(batch, device=device, dtype=dtype)

    def start(self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Summary:
        """The sums before the first key."""
        heads, kept = self.heads, accumulator(torch.get_default_dtype() if dtype is None else dtype)
        shape = (batch, heads.kv_heads, self.features, heads.value_width + 1)
        content = {"sum": torch.zeros(shape, dtype=kept, device=device)}
        if self.weighted or has_log_scale(self.key_map):
            content["top"] = torch.full(shape[:2], float("-inf"), dtype=kept, device=device)
        return Summary(content)

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """Constant: features x (value + 1) numbers per head of keys, and one more under a log scale."""
        del length
        if not self.info.supports.state:
            self.refuse("state", "state")
        heads = self.heads
        numbers = self.features * (heads.value_width + 1) + (self.weighted or has_log_scale(self.key_map))
        return batch * heads.kv_heads * numbers * accumulator(dtype).itemsize


def visible(q: Tensor, k: Tensor, causal: bool, key_mask: Tensor | None) -> Tensor:
    """For definitions: which keys each query sees, broadcasting to (batch, heads, queries, keys)."""
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    if causal:
        seen = seen.tril(k.shape[2] - q.shape[2])
    return seen if key_mask is None else seen & key_mask[:, None, None, :]


def ratio(numerator: Tensor, total: Tensor) -> Tensor:
    """For definitions: numerator / total, and 0 where the weights of a row sum to 0."""
    return torch.where(total == 0, 0, numerator / torch.where(total == 0, 1, total))
