"""Attention to a window that every token chooses."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge
from torch import Tensor

from regard.attention.sparse._base import Sparse, masked_average
from regard.attention.sparse._spans import reach_of
from regard.core.attention import Attended, Call, accumulation_dtype
from regard.core.info import Info, Input, Supports
from regard.engines.dense import Rule, chunked, expand_heads, publish, softmax
from regard.patterns import Pattern
from regard.patterns import window as neighbours


@final
class DynamicSpan(Sparse):
    """p_ij ~ m_i(i - j) exp(scale q_i . k_j), m_i(x) = min(max((R + z_i - x) / R, 0), 1), z_i = `max_span` s_i.

    Each token says for each head how far it looks: s, in [0, 1], is the sigmoid of a projection v . x + b of its hidden
    state. Keys are seen at full weight up to distance z_i, then ever less over a ramp of R slots, and not at all at
    z_i + R or beyond `max_span`. The loss `span` is the mean z. No call computes pairs beyond the longest span of its
    tokens, in steps of 64 slots (a compiled one computes `max_span`).

    Cost: O(length (max z + R) dim) time, O(length) memory. State: the last `max_span` keys and values, since a later
    token may ask for them.

    Example:
        >>> from regard import Heads, weights
        >>> mechanism = DynamicSpan(Heads(count=1, key_dim=1, value_dim=4, causal=True), max_span=4, ramp=1)
        >>> x, span = torch.zeros(1, 1, 4, 1), torch.tensor([0.0, 0.0, 0.25, 0.5]).reshape(1, 1, 4, 1)  # z = 0, 0, 1, 2
        >>> mechanism(x, x, torch.eye(4)[None, None], inputs={"span": span}).values[0, 0].round(decimals=2)
        tensor([[1.0000, 0.0000, 0.0000, 0.0000],
                [0.0000, 1.0000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000, 0.0000],
                [0.0000, 0.3300, 0.3300, 0.3300]])

    Source: Sukhbaatar et al. 2019, section 2.2, dynamic attention span. There a token does not see itself; here it
    does, as in every causal mechanism.
    """

    default_info = Info(
        title="Dynamic span",
        source="Sukhbaatar et al. 2019, section 2.2",
        supports=Supports.all(but=("bidirectional", "cross", "marks")),
        inputs={"span": Input(slots="queries", heads="query", low=0.0, high=1.0)},
        losses={"span": 2e-6},
        time=1,
        state="window",
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"max_span": 6, "ramp": 4},
        {"max_span": 3, "ramp": 5},
        {"max_span": 5, "ramp": 2, "scale": 0.7},
    )
    reasons: ClassVar[Mapping[str, str]] = {
        "bidirectional": "the span reaches back from a token",
        "cross": "a span needs queries and keys at the same positions",
    }

    max_span: Annotated[int, Ge(1)] = 1024
    """largest distance that a token may ask for"""
    ramp: Annotated[int, Ge(1)] = 32
    """R, slots over which a key fades out"""

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Sigmoid, in float32 at least: 8 bits would round a span of 1,000 slots to steps of 4."""
        span = raw["span"]
        return {"span": span.to(accumulation_dtype(span.dtype)).sigmoid()}

    def spans(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """z of every token, (batch, heads, queries)."""
        return self.max_span * inputs["span"][..., 0]

    def pairs(self) -> Pattern:
        """Keys up to the longest span."""
        return neighbours(self.max_span)

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """What every m_i leaves of `max_span`; the weights of the others are 0."""
        return (i - j).abs() <= self.max_span

    def rule(self, reach: int) -> str:
        """The published formulas for spans of this reach."""
        factor, ramp, longest = self.factor, self.ramp, self.max_span

        def score(q: Tensor, k: Tensor, distances: Tensor) -> Tensor:
            """scale q_i . k_j + log m_i(i - j); the last number of a query is z_i."""
            m = ((ramp + q[..., -1:] - distances) / ramp).clamp(0, 1)
            seen = ~(m <= 0) & (distances <= longest)  # a span of NaN sees all of them, as NaN
            log_m = torch.where(seen, m, 1).log().masked_fill(~seen, float("-inf"))
            return (factor * q[..., :-1]) @ k.mT + log_m

        name = f"dynamic_span({factor!r}, {ramp}, {longest}, {reach})"
        return publish(name, Rule(score, softmax, depth=4, relative=True, reach=reach))

    def make_pattern(self) -> None:
        """The window, and its rule for compiled calls, which cannot publish one."""
        super().make_pattern()
        self.whole = self.rule(self.max_span)

    def reaching(self, z: Tensor) -> str:
        """The rule for the longest of these spans; for `max_span` where nobody may look."""
        if torch.compiler.is_compiling() or not z.numel():
            return self.whole
        reach = reach_of(z.detach().max().nan_to_num(self.max_span).item(), self.ramp, self.max_span)
        return self.whole if reach == self.max_span else self.rule(reach)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """In chunks of queries, each with the keys that its spans reach."""
        z = self.max_span * call.inputs["span"]
        losses = {"span": mean_of_real(z, call.key_mask)} if self.training else {}
        k, v, call, first = self._remember(k, v, call)
        assert isinstance(first, int)
        call = call._replace(query_start=call.query_start - first)
        k, v = expand_heads(k, self.heads.count), expand_heads(v, self.heads.count)
        q = torch.cat([q.to(z.dtype), z], -1)
        dropout = self.heads.dropout if self.training else 0.0
        return Attended(chunked(self.reaching(z), q, k, v, call, dropout=dropout), call.state, losses)

    def kept_slots(self, length: int) -> int:
        """The longest span."""
        return min(length, self.max_span)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """The softmax of each row over the keys that m_i leaves, of logits plus log m_i."""
        k, v = (x.repeat_interleave(self.heads.group, 1) for x in (k, v))
        i = torch.arange(call.query_start, call.query_start + q.shape[2], device=q.device)
        j = torch.arange(k.shape[2], device=q.device)
        logits = self.factor * torch.einsum("bhid,bhjd->bhij", q, k)
        if call.bias is not None:
            logits = logits + call.bias.logits(i, j).to(q.dtype)
        distances = i[:, None] - j
        m = torch.clamp(1 + (self.max_span * call.inputs["span"].to(q.dtype) - distances) / self.ramp, 0, 1)
        seen = call.visible(q, k) & ~(m <= 0) & (distances <= self.max_span)
        return masked_average(logits + torch.where(seen, m, 1).log(), seen, v)


def mean_of_real(z: Tensor, key_mask: Tensor | None) -> Tensor:
    """The mean over heads and the tokens that are no padding, 0 without any."""
    if key_mask is None:
        return z.mean() if z.numel() else z.sum()
    real = key_mask[:, key_mask.shape[1] - z.shape[2] :, None][:, None].expand_as(z)
    return z.masked_fill(~real, 0).sum() / real.sum().clamp(min=1)
