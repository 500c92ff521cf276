"""The template of synthesized attention: weights that no query-key product makes."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from regard.bias import ScoreBias
from regard.core import Attended, Attention, registered_name
from regard.engines.dense.fused import average_once, dot_product, expand_heads
from regard.errors import ConfigError
from regard.info import Heads
from regard.state import Slots, State, slot_bytes


class Synthesizer(Attention):
    """Template: o_i = sum_j softmax_j(B_ij) v_j, where B has one column per slot up to `max_length`.

    B is given as an inner product of something per query and something per slot, so that the fused softmax serves it.
    The state keeps values only.

    Args:
        heads: what to serve; `max_length` is required.

    Raises:
        ConfigError: no `max_length`.
    """

    reasons: ClassVar = {"cross": "its weights belong to slots of one sequence"}

    def __init__(self, heads: Heads, **options: object) -> None:
        super().__init__(heads, **options)
        if heads.max_length is None:
            raise ConfigError(
                f"{registered_name(type(self))} needs Heads.max_length: its weights have one column per position"
            )

    @abstractmethod
    def factors(self, q: Tensor, keys: int) -> tuple[Tensor, Tensor, Tensor]:
        """B = rows columns^T + offset: (batch, heads, queries, width), (heads, keys, width) and (heads, keys)."""

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
        """Slice B to the slots so far, mask, average."""
        del k, bias, marks
        if state is not None:
            assert isinstance(state, Slots)
            state = state.append(key_mask, v=v)
            v, key_mask = state.view()["v"], state.view().get("key_mask")
        keys = v.shape[2]
        self.require_length(keys)
        rows, columns, offset = self.factors(q, keys)
        dropout = self.heads.dropout if self.training else 0.0
        if q.shape[2] == 1 and not dropout:
            logits = torch.einsum("bhie,hje->bhij", rows, columns) + offset[:, None]
            return Attended(average_once(logits, v, key_mask), state, {})
        # The offset is one more column of the inner product: the fused kernel adds nothing that learns.
        rows = torch.cat([rows, rows.new_ones(*rows.shape[:3], 1)], -1)
        columns = torch.cat([columns, offset[..., None]], -1).to(rows.dtype).expand(q.shape[0], -1, -1, -1)
        v = expand_heads(v, self.heads.count)
        causal = self.heads.causal
        values = dot_product(rows, columns, v, scale=1.0, causal=causal, key_mask=key_mask, dropout=dropout)
        return Attended(values, state, {})

    def initial_state(
        self, batch: int, *, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """No slots."""
        shape = (batch, self.heads.kv_heads, 0, self.heads.value_width)
        return Slots.empty(v=torch.empty(shape, device=device, dtype=dtype))

    def state_nbytes(self, batch: int, length: int, dtype: torch.dtype) -> int:
        """Length x kv_heads x value."""
        return slot_bytes(self.heads.kv_heads * self.heads.value_width, length, dtype, batch)
