"""Forgetting attention."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.dense import Scaled, inner_products, reference_softmax
from regard.core.attention import Attended, Call, accumulation_dtype
from regard.core.info import Info, Input, Supports
from regard.core.state import Entry, per_slot
from regard.engines.dense import gated_dot_product
from regard.engines.tiles import CUT


@final
class Forgetting(Scaled):
    """Softmax that forgets: z_ij = scale q_i . k_j + sum_{j < r <= i} log f_r, with a forget gate f per head and slot.

    The gate is the sigmoid of a projection w . x + c of the hidden state (the paper's w_f, b_f), whose c starts at 0 as
    in its authors' code, so that f starts near 1/2. Each head fades out at a pace of its own, which it reads from the
    text, so that no positions are needed; f = 1 is `softmax`, a constant f = exp(-m) is ALiBi with the slope m, and
    f = 0 begins a document: nothing before it is seen. (Log gates below -2^20 count as -inf.)

    Cost: as `softmax`, in linear memory. State: every key and value, and a number per query head and slot. The sums are
    made in float64, and only their differences are rounded. What is lost: order is the mechanism, so it is causal only.

    However much is forgotten between a query and the nearest key that it sees, its weights lose no digit: what all
    logits of a row share is left out of them. The log-sum-exp has it, so that float32 holds one of -G to G / 10^7.

    Its log-sum-exp counts the gates behind the last key of a part too: parts of the keys get those of all slots up to
    the last query.

    Example:
        >>> from regard import Heads
        >>> q, v = torch.zeros(1, 1, 4, 1), torch.tensor([1.0, 3.0, 10.0, 20.0]).reshape(1, 1, 4, 1)
        >>> log_gate = torch.tensor([1.0, 1.0, 0.0, 1.0]).log().reshape(1, 1, 4, 1)
        >>> mechanism = Forgetting(Heads(count=1, key_dim=1, causal=True))
        >>> mechanism(q, q, v, inputs={"log_gate": log_gate}).values.round().flatten()  # the third begins a document
        tensor([ 1.,  2., 10., 15.])

    Source: Lin et al. 2025, Forgetting Transformer, Eqs. 4 to 6 and section 3.
    """

    default_info = Info(
        title="Forgetting",
        source="Lin et al. 2025, Forgetting Transformer, section 3",
        supports=Supports.all(but=("bidirectional", "cross", "marks")),
        inputs={"log_gate": Input(slots="keys", heads="query", high=0.0)},
        state="length",
        mergeable=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({}, {"scale": 0.7})
    reasons: ClassVar[Mapping[str, str]] = {
        "bidirectional": "a gate forgets what came before it",
        "cross": "a gate forgets what came before it",
    }

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """log sigmoid, in float32 at least: 8 bits of a number near 0 would add up to another pace."""
        gate = raw["log_gate"]
        return {"log_gate": F.logsigmoid(gate.to(accumulation_dtype(gate.dtype)))}

    def average(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Over every key, with the sums of the gates behind it."""
        gates = cut(call.inputs["log_gate"]).squeeze(-1)
        values, lse = gated_dot_product(q.to(k.dtype), k, v, gates, call, scale=self.factor, dropout=self.dropped)
        return Attended(values, call.state, lse=lse if call.lse else None)

    def state_layout(self) -> dict[str, Entry]:
        """Every key and value, and the log gate of every slot."""
        return {**super().state_layout(), "log_gate": per_slot(self.heads.count, 1, dtype="accumulation")}

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every logit with the gates behind its key added one by one, then the softmax of each row."""
        gates, keys = cut(call.inputs["log_gate"]).to(q.dtype), k.shape[2]
        r, j = torch.arange(gates.shape[2], device=q.device)[:, None], torch.arange(keys, device=q.device)
        sums = torch.where(r > j, gates, 0).cumsum(2)[:, :, call.query_start : call.query_start + q.shape[2]]
        return reference_softmax(self.factor * inner_products(q, k) + sums, v, call)


def cut(log_gate: Tensor) -> Tensor:
    """-inf instead of log gates below `CUT`."""
    return log_gate.masked_fill(log_gate < CUT, float("-inf"))
