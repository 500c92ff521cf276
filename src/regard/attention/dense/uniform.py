"""Pooling: every visible key counts the same."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.attention import Attended, Attention, Call, accumulation_dtype
from regard.core.info import Info, Supports
from regard.core.state import Entry, Summary, constant
from regard.engines.dense import expand_heads


@final
class Uniform(Attention):
    """The mean of the visible values, o_i = sum_j v_j / #visible, or their channel-wise maximum.

    Nadaraya-Watson regression with a constant kernel. Causal: a running mean or maximum.

    Cost: O(length value) time and memory. State: one total (or maximum) and, for the mean, one count.

    Example:
        >>> from regard import Heads
        >>> x = torch.arange(4.0).reshape(1, 1, 4, 1)
        >>> Uniform(Heads(count=1, key_dim=1, causal=True))(x, x, x).values.flatten()
        tensor([0.0000, 0.5000, 1.0000, 1.5000])

    Source: Nadaraya 1964 and Watson 1964, constant kernel.
    """

    default_info = Info(
        title="Uniform",
        source="Nadaraya 1964, Watson 1964, constant kernel",
        supports=Supports.all(but=("bias", "marks", "dropout")),
        reads="v",
        time=1,
        state="constant",
        sees_content_only=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"pool": "max"})
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "its weights are all equal",
        "dropout": "its weights are never made",
    }

    pool: Literal["mean", "max"] = "mean"
    """`mean`, or `max`, which is not linear in the values"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """A maximum is not linear."""
        linear = options["pool"] == "mean"
        return replace(cls.default_info, linear_in_value=linear, affine_in_value=linear)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Running totals (causal) or one total (else) of the values, on top of the state's."""
        state, queries = call.state, q.shape[2]
        assert state is None or isinstance(state, Summary)
        real = call.key_mask
        if real is None:
            real = torch.ones(v.shape[0], v.shape[2], dtype=torch.bool, device=v.device)
        pooled, content = (self._mean if self.pool == "mean" else self._max)(v, real, state)
        if not call.causal:
            pooled = pooled.expand(-1, -1, queries, -1)
        values = expand_heads(pooled[:, :, -queries:] if queries else pooled[:, :, :0], self.heads.count)
        return Attended(values.to(v.dtype), None if state is None else Summary(content, state.length + v.shape[2]))

    def _mean(self, v: Tensor, real: Tensor, state: Summary | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Pooled values, one per key if causal, else one; and the state's content."""
        wide = v.to(accumulation_dtype(v.dtype))
        if self.heads.causal and v.shape[2]:
            total, count = wide.cumsum(2), real.cumsum(1)
        else:
            total, count = wide.sum(2, keepdim=True), real.sum(1, keepdim=True)
        if state is not None:
            total, count = total + state["total"], count + state["count"]
        last = {"total": total[:, :, -1:].clone(), "count": count[:, -1:].clone()}  # no view: it would keep every row
        return total / count.clamp(min=1)[:, None, :, None], last

    def _max(self, v: Tensor, real: Tensor, state: Summary | None) -> tuple[Tensor, dict[str, Tensor]]:
        """As `_mean`. A maximum over no key is kept as -inf and shown as 0."""
        v = v.masked_fill(~real[:, None, :, None], float("-inf"))
        start = v.new_full((*v.shape[:2], 1, v.shape[3]), float("-inf")) if state is None else state["highest"]
        every = torch.cat([start.to(v.dtype), v], 2)
        highest = every.cummax(2).values[:, :, 1:] if self.heads.causal else every.amax(2, keepdim=True)
        last = highest[:, :, -1:].clone() if v.shape[2] else start
        return torch.where(highest == float("-inf"), 0.0, highest), {"highest": last}

    def state_layout(self) -> dict[str, Entry]:
        """One total and the number of values in it, or one maximum."""
        shape = self.heads.kv_heads, 1, self.heads.value_width
        if self.pool == "max":
            return {"highest": constant(*shape, fill=float("-inf"))}
        return {"total": constant(*shape, dtype="accumulation"), "count": constant(1, dtype=torch.int64)}

    @property
    def adds_states(self) -> bool:
        """A total and a count add up, and of maxima there is one."""
        return self.impl != "reference"

    def added(self, states: Sequence[Summary]) -> Summary:
        """As `Mechanism.added`; of maxima the largest."""
        if self.pool == "mean":
            return super().added(states)
        highest = torch.stack([state["highest"] for state in states]).amax(0)
        return replace(states[-1], content={"highest": highest})

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """The values that each query sees, side by side, (queries, keys, value), then their mean or maximum."""
        seen = call.visible(q, k)[..., None]
        v = v.repeat_interleave(self.heads.group, 1)[:, :, None]
        if self.pool == "mean":
            return torch.where(seen, v, 0.0).sum(3) / seen.sum(3).clamp(min=1)
        highest = F.pad(v.masked_fill(~seen, float("-inf")), (0, 0, 0, 1), value=float("-inf")).amax(3)
        return highest.masked_fill(~seen.any(3), 0.0)
