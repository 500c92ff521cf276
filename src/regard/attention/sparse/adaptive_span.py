"""Attention to a window that every head learns."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, cast, final

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from regard.attention.sparse._base import Sparse
from regard.attention.sparse._spans import reach_of
from regard.core.attention import Attended, Call, accumulation_dtype
from regard.core.bias import ScoreBias
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.core.state import State
from regard.core.transforms import forward_mode
from regard.engines.tiles.gathered import spanning
from regard.patterns import Pattern, causal
from regard.patterns import window as neighbours


@final
class AdaptiveSpan(Sparse):
    """p_ij ~ m_z(i - j) exp(scale q_i . k_j), m_z(x) = min(max((R + z - x) / R, 0), 1), with a learned z for each head.

    Keys are seen at full weight up to distance z, then ever less over a ramp of R slots, and not at all at z + R or
    beyond `max_span`. z = `max_span` * `span`, the weight, cut to [0, 1]; the loss `span` is the mean z.
    Only what some head reaches is computed and kept, in steps of 64 slots (a compiled call computes `max_span`).

    Cost: O(length (max z + R) dim) time, O(length) memory. State: the keys and values that a later query can still see.

    Example:
        >>> from regard import Heads, weights
        >>> mechanism = AdaptiveSpan(Heads(count=1, key_dim=1, causal=True), max_span=8, ramp=2, initial=0.25)  # z = 2
        >>> weights(mechanism, torch.zeros(1, 1, 6, 1), torch.zeros(1, 1, 6, 1))[0, 0, 5].detach()  # 1, 1, 1, 1/2
        tensor([0.0000, 0.0000, 0.1429, 0.2857, 0.2857, 0.2857])

    Source: Sukhbaatar et al. 2019, sections 2.2 and 2.3. There a token does not see itself, and distances begin behind
    it; here it does, as in every causal mechanism.
    """

    default_info = Info(
        title="Adaptive span",
        source="Sukhbaatar et al. 2019, section 2.2",
        supports=Supports.all(but=("bidirectional", "cross", "marks")),
        losses={"span": 2e-6},
        time=1,
        state="window",
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"max_span": 6, "ramp": 3, "initial": 0.6},
        {"max_span": 200, "ramp": 5, "initial": 0.02},
        {"max_span": 5, "ramp": 2, "initial": 0.6, "scale": 0.7},
    )
    reasons: ClassVar[Mapping[str, str]] = {
        "bidirectional": "the span reaches back from a token",
        "cross": "a span needs queries and keys at the same positions",
    }

    max_span: Annotated[int, Ge(1)] = 1024
    """largest distance that a head may learn to see"""
    ramp: Annotated[int, Ge(1)] = 32
    """R, slots over which a key fades out"""
    initial: Annotated[float, Ge(0), Le(1)] = 0.0
    """share of `max_span` with which every head begins"""
    span: nn.Parameter = weight()
    reach: int = weight()
    """largest distance of the pattern"""
    whole: Pattern = weight()
    """the pattern of `max_span`"""

    def draw_weights(self) -> None:
        self.span = nn.Parameter(torch.full((self.heads.count,), float(self.initial)))
        self.reach = self.needed()

    def needed(self) -> int:
        """The largest distance at which a head has any weight, in steps; all of `max_span` where nobody may look."""
        if torch.compiler.is_compiling():
            return self.max_span
        longest = self.span.detach().nan_to_num(1).clamp(0, 1).max().item()  # NaN may reach all
        return reach_of(self.max_span * longest, self.ramp, self.max_span)

    def make_pattern(self) -> None:
        """The window of the reach, and that of `max_span`."""
        super().make_pattern()
        self.whole = causal & neighbours(self.max_span)

    def pairs(self) -> Pattern:
        """Keys up to the reach."""
        return neighbours(self.reach)

    def allowed(self, i: Tensor, j: Tensor) -> Tensor:
        """What m_z leaves of `max_span`; the weights of the others are 0."""
        return (i - j).abs() <= self.max_span

    def trim(self) -> None:
        """Follow the spans, which an optimizer may have moved."""
        reach = self.needed()
        if reach == self.reach:
            return
        self.reach = reach
        if reach == self.max_span:  # a compiler makes no patterns
            self.pattern = self.whole
        else:
            self.make_pattern()

    @property
    def z(self) -> Tensor:
        """z of every head, in float32 at least."""
        span = self.span.to(accumulation_dtype(self.span.dtype))
        bounded = span.clamp(0, 1) if forward_mode() else Bounded.apply(span)
        return self.max_span * cast(Tensor, bounded)

    def spans(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """z, (heads,), whatever is read."""
        del inputs
        return self.z

    def log_mask(self, distances: Tensor) -> Tensor:
        """log m_z of every head at these distances, (heads, distances); -inf beyond."""
        m = ((self.ramp + self.z[:, None] - distances) / self.ramp).clamp(0, 1)
        return torch.where(m == 0, 1, m).log().masked_fill(m == 0, float("-inf"))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """The window of the pattern, with log m_z as a bias."""
        self.trim()
        bias = spanning(call.bias or ScoreBias(), 0, self.reach)
        own = self.log_mask(torch.arange(self.reach, -1, -1, device=q.device))
        bias = replace(bias, high=self.reach, curve=own if bias.curve is None else own + bias.curve)
        got = super().attend(q, k, v, call._replace(bias=bias))
        losses = {"span": self.z.mean()} if self.training else {}
        return got._replace(losses=losses)

    def outermost_distances(self, queries: int, keys: int, state: State | None) -> tuple[int, int]:
        """As `PatternSoftmax.outermost_distances`, by the spans of today."""
        self.trim()
        return super().outermost_distances(queries, keys, state)

    def kept_slots(self, length: int) -> int:
        """The reach."""
        return min(length, self.needed())

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """The softmax over the past, times m_z, and each row divided by its sum."""
        k, v = (x.repeat_interleave(self.heads.group, 1) for x in (k, v))
        logits = self.factor * torch.einsum("bhid,bhjd->bhij", q, k)
        i = torch.arange(call.query_start, call.query_start + q.shape[2], device=q.device)
        j = torch.arange(k.shape[2], device=q.device)
        if call.bias is not None:
            logits = logits + call.bias.logits(i, j).to(q.dtype)
        distances = i[:, None] - j
        m = ((self.ramp + self.z[:, None, None] - distances) / self.ramp).clamp(0, 1) * (distances <= self.max_span)
        seen = call.visible(q, k) & (m > 0)
        highest = logits.masked_fill(~seen, float("-inf")).amax(-1, keepdim=True)
        odds = m * torch.exp((logits - highest.clamp(min=torch.finfo(q.dtype).min)).masked_fill(~seen, float("-inf")))
        total = odds.sum(-1, keepdim=True)
        return torch.einsum("bhij,bhjd->bhid", odds / torch.where(total == 0, 1, total), v)


class Bounded(torch.autograd.Function):
    """min(max(x, 0), 1), whose slope is 1 outside too, except where a step would lead further out."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clamp(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return slope.masked_fill(((x < 0) & (slope > 0)) | ((x > 1) & (slope < 0)), 0)
