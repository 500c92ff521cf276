"""Pooling: every visible key counts the same."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from regard.bias import ScoreBias
from regard.core import Attended, Attention
from regard.engines.dense.fused import expand_heads
from regard.errors import ConfigError
from regard.info import Heads, Info, Supports
from regard.state import State, Summary


@final
class Uniform(Attention):
    """The mean of the visible values, o_i = sum_j v_j / #visible, or their channel-wise maximum.

    Nadaraya-Watson regression with a constant kernel. Causal: a running mean or maximum.

    Cost: O(length value) time and memory. State: one total (or maximum) and, for the mean, one count.

    Args:
        heads: what to serve.
        pool: `mean`, or `max`, which is not linear in the values.

    Raises:
        ConfigError: another `pool`.

    Example:
        >>> from regard import Heads
        >>> x = torch.arange(4.0).reshape(1, 1, 4, 1)
        >>> Uniform(Heads(count=1, key_dim=1, causal=True))(x, x, x).values.flatten()
        tensor([0.0000, 0.5000, 1.0000, 1.5000])

    Source: Nadaraya 1964 and Watson 1964, constant kernel.
    """

    info = Info(
        title="Uniform",
        source="Nadaraya 1964, Watson 1964, constant kernel",
        supports=Supports(
            causal=True,
            bidirectional=True,
            cross=True,
            key_mask=True,
            state=True,
            prefix=True,
        ),
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

    @classmethod
    def facts(cls, **options: object) -> Info:
        """A maximum is not linear."""
        linear = options.get("pool", "mean") == "mean"
        return replace(cls.info, linear_in_value=linear, affine_in_value=linear)

    def __init__(self, heads: Heads, *, pool: Literal["mean", "max"] = "mean") -> None:
        super().__init__(heads, pool=pool)
        if pool not in ("mean", "max"):
            raise ConfigError(f"uniform has no pool={pool!r}; it has mean, max")
        self.pool = pool

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
        """Running totals (causal) or one total (else) of the values, on top of the state's."""
        del k, bias, marks
        assert state is None or isinstance(state, Summary)
        batch, _, keys, _ = v.shape
        real = torch.ones(batch, keys, dtype=torch.bool, device=v.device) if key_mask is None else key_mask
        pooled, content = (self._mean if self.pool == "mean" else self._max)(v, real, state)
        if not self.heads.causal:
            pooled = pooled.expand(-1, -1, q.shape[2], -1)
        values = expand_heads(pooled[:, :, -q.shape[2] :] if q.shape[2] else pooled[:, :, :0], self.heads.count)
        return Attended(values.to(v.dtype), None if state is None else Summary(content, state.length + keys), {})

    def _mean(self, v: Tensor, real: Tensor, state: Summary | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Pooled values, one per key if causal, else one; and the state's content."""
        wide = v.to(torch.promote_types(v.dtype, torch.float32))
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
        """One query at a time."""
        del k, bias, marks
        queries, keys = q.shape[2], v.shape[2]
        rows: list[Tensor] = []
        for batch in range(v.shape[0]):
            for i in range(queries):
                last = i + keys - queries if self.heads.causal else keys - 1
                seen = [j for j in range(last + 1) if key_mask is None or bool(key_mask[batch, j])]
                picked = v[batch, :, seen]
                if not seen:
                    rows.append(picked.sum(1))
                else:
                    rows.append(picked.sum(1) / len(seen) if self.pool == "mean" else picked.amax(1))
        values = torch.stack(rows).unflatten(0, (v.shape[0], queries)).transpose(1, 2)
        return values.repeat_interleave(self.heads.group, 1)

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """Nothing seen."""
        dtype = torch.get_default_dtype() if dtype is None else dtype
        shape = (batch, self.heads.kv_heads, 1, self.heads.value_width)
        if self.pool == "max":
            return Summary({"highest": torch.full(shape, float("-inf"), device=device, dtype=dtype)})
        wide = torch.promote_types(dtype, torch.float32)
        total = torch.zeros(shape, device=device, dtype=wide)
        return Summary({"total": total, "count": torch.zeros(batch, 1, device=device, dtype=torch.int64)})

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """kv_heads x value numbers (the mean: in at least float32), and for the mean 8 bytes of count."""
        del length
        numbers = batch * self.heads.kv_heads * self.heads.value_width
        if self.pool == "max":
            return numbers * dtype.itemsize
        return numbers * torch.promote_types(dtype, torch.float32).itemsize + 8 * batch
