"""The synthesized template: weights that no query-key product makes."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.attention.dense import reference_softmax
from regard.core.attention import Attended, Attention, Call, accumulation_dtype
from regard.core.bias import ScoreBias
from regard.core.errors import ConfigError
from regard.core.state import Entry, per_slot
from regard.engines.dense import average_once, dot_product, expand_heads


class Logits(NamedTuple):
    """B of some queries over the slots so far: rows columns^T + table, without what is None.

    The batch of each may be 1: what no token moves.
    """

    rows: Float[Tensor, "b heads queries width"] | None = None
    columns: Float[Tensor, "c heads slots width"] | None = None
    table: Float[Tensor, "d heads queries slots"] | None = None

    def whole(self) -> Float[Tensor, "b heads queries slots"]:
        """B as one tensor."""
        if self.rows is None or self.columns is None:
            assert self.table is not None
            return self.table
        product = torch.einsum("bhie,bhje->bhij", self.rows, self.columns)
        return product if self.table is None else product + self.table


class Synthesizer(Attention):
    """Template: o_i = sum_j softmax_j(B_ij) v_j, where B has one column per slot up to `max_length`.

    The state keeps values only, unless a mechanism says otherwise in `kept`.

    Raises:
        ConfigError: no `Heads.max_length`.
        LimitError: more slots than `max_length`.
    """

    reasons: ClassVar[Mapping[str, str]] = {"cross": "its weights belong to slots of one sequence"}

    def check_options(self) -> None:
        if self.heads.max_length is None:
            raise ConfigError(
                f"{self._name} needs max_length, the longest sequence: its weights have one column per position"
            )

    @abstractmethod
    def logits(self, q: Tensor, k: Tensor | None, first: int, slots: int) -> Logits:
        """B of the queries from slot `first` on, over the first `slots` slots; k, of all of these, only if kept."""

    @abstractmethod
    def synthesized(self, q: Tensor, k: Tensor, first: int) -> Float[Tensor, "b heads queries slots"]:
        """`logits` by definition, as one tensor, for as many slots as k has."""

    def kept(self, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        """What is remembered of each slot."""
        del k
        return {"v": v}

    def check_length(self, length: int) -> None:
        """Refuse a sequence longer than B."""
        self.require_length(length)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Slice B to the slots so far, mask, average."""
        self.require_length(call.query_start + q.shape[2])
        kept, call = call.remember(**self.kept(k, v))
        v = kept["v"]
        b = self.logits(q, kept.get("k"), call.query_start, v.shape[2])
        dropout = self.heads.dropout if self.training else 0.0
        if q.shape[2] == 1 and not dropout:
            logits = b.whole().to(accumulation_dtype(v.dtype)).expand(q.shape[0], -1, -1, -1)
            return Attended(average_once(logits, v, call.key_mask), call.state)
        if b.rows is None or b.columns is None:
            return Attended(average(b.whole(), v, call, dropout), call.state)
        rows, columns = (x.to(v.dtype).expand(q.shape[0], -1, -1, -1) for x in (b.rows, b.columns))
        v = expand_heads(v, self.heads.count)
        call = call._replace(bias=None if b.table is None else ScoreBias(table=b.table))
        return Attended(dot_product(rows, columns, v, call, scale=1.0, dropout=dropout), call.state)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every row of B, cut to the slots, then the softmax of each row."""
        self.require_length(call.query_start + q.shape[2])
        logits = self.synthesized(q, k, call.query_start).to(q.dtype)
        return reference_softmax(logits.expand(q.shape[0], -1, -1, -1), v, call)

    def state_layout(self) -> Mapping[str, Entry]:
        """Every value."""
        return {"v": per_slot(self.heads.kv_heads, self.heads.value_width)}


def average(
    table: Float[Tensor, "b heads queries slots"],
    v: Float[Tensor, "batch kv_heads slots value"],
    call: Call,
    dropout: float,
) -> Float[Tensor, "batch heads queries value"]:
    """softmax(table) v over the allowed keys; logits of batch 1 are normalised once for the whole batch."""
    (heads, queries, slots), (batch, kv_heads) = table.shape[1:], v.shape[:2]
    logits, hidden = table.to(accumulation_dtype(v.dtype)), None
    if call.causal:
        hidden = torch.ones(queries, slots, dtype=torch.bool, device=v.device).triu(call.query_start + 1)
    if call.key_mask is not None:
        masked = ~call.key_mask[:, None, None, :]
        hidden = masked if hidden is None else hidden | masked
    if hidden is not None:
        logits = logits.masked_fill(hidden, torch.finfo(logits.dtype).min)
    weights = logits.softmax(-1)
    if call.key_mask is not None:  # a query without any key has equal weights until here
        assert hidden is not None
        weights = weights.masked_fill(hidden, 0)
    if dropout:
        weights = F.dropout(weights.expand(batch, -1, -1, -1), dropout)
    grouped = weights.to(v.dtype).reshape(len(weights), kv_heads, heads // kv_heads * queries, slots)
    # einsum, since matmul would copy weights of batch 1 for every row of the batch
    return torch.einsum("bgij,bgjd->bgid", grouped, v).reshape(batch, heads, queries, v.shape[-1])
