"""The synthesized template: weights that no query-key product makes."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from regard.core import Attended, Attention, Call
from regard.engines.dense import average_once, dot_product, expand_heads
from regard.errors import ConfigError
from regard.state import Entry, per_slot


class Synthesizer(Attention):
    """Template: o_i = sum_j softmax_j(B_ij) v_j, where B has one column per slot up to `max_length`.

    B is given as an inner product of something per query and something per slot, so that the fused softmax serves it.
    The state keeps values only.

    Raises:
        ConfigError: no `Heads.max_length`.
        LimitError: more slots than `max_length`.
    """

    reasons: ClassVar[Mapping[str, str]] = {"cross": "its weights belong to slots of one sequence"}

    def check_options(self) -> None:
        if self.heads.max_length is None:
            raise ConfigError(f"{self._name} needs Heads.max_length: its weights have one column per position")

    @abstractmethod
    def factors(self, q: Tensor, keys: int) -> tuple[Tensor, Tensor, Tensor]:
        """B = rows columns^T + offset: (batch, heads, queries, width), (heads, keys, width) and (heads, keys)."""

    def check_length(self, length: int) -> None:
        """Refuse a sequence longer than B."""
        self.require_length(length)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Slice B to the slots so far, mask, average."""
        kept, call = call.remember(v=v)
        v = kept["v"]
        rows, columns, offset = self.factors(q, v.shape[2])
        dropout = self.heads.dropout if self.training else 0.0
        if q.shape[2] == 1 and not dropout:
            logits = torch.einsum("bhie,hje->bhij", rows, columns) + offset[:, None]
            return Attended(average_once(logits, v, call.key_mask), call.state)
        # The offset is one more column of the inner product: the fused kernel adds nothing that learns.
        rows = torch.cat([rows, rows.new_ones(*rows.shape[:3], 1)], -1)
        columns = torch.cat([columns, offset[..., None]], -1).to(rows.dtype).expand(q.shape[0], -1, -1, -1)
        v = expand_heads(v, self.heads.count)
        return Attended(dot_product(rows, columns, v, call, scale=1.0, dropout=dropout), call.state)

    def state_layout(self) -> Mapping[str, Entry]:
        """Every value."""
        return {"v": per_slot(self.heads.kv_heads, self.heads.value_width)}
