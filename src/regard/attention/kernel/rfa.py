"""Random feature attention (RFA): a Gaussian kernel of unit vectors, with an optional recency gate."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import Tensor, nn

from regard.attention.kernel import RandomKernel
from regard.core.attention import Attended, Call, accumulation_dtype
from regard.core.compiling import known_within
from regard.core.info import Info, Input, Supports
from regard.core.options import weight
from regard.core.state import Entry, Summary, constant
from regard.engines.sums.step import Averaged
from regard.features.norms import balanced, short

SMALLEST = 1e-6
"""of the magnitude of a row's total, beside the largest gate weight (1 without a gate)"""
GATE_START = 3.0
CLOSED = -800.0
"""log gates below count as this: their exponential is 0, and sums of them stay numbers"""
LEAST_REST = 1e-30
"""added to 1 - g, so that a gate of exactly 1 gets its gradient too"""
"""b_g at first: a gate of 0.95, a memory of some 20 tokens"""


@final
class Rfa(RandomKernel):
    """out_t = phi(q_t) S_t / phi(q_t) . z_t, S_t = sum_{s <= t} phi(k_s) v_s^T, z_t = sum_{s <= t} phi(k_s).

    phi(x) = D^(-1/2) [sin W x', cos W x'], x' = x / |x|, rows of W ~ N(0, diag(1 / sigma^2)): E[phi(x) . phi(y)] is
    exp(-sum_c (x'_c - y'_c)^2 / (2 sigma_c^2)), for one sigma exp(x' . y' / sigma^2) up to a factor that cancels
    (the paper's Theorem 1 and Eq. 4). sigma is learned, a vector per head. Our num_features is the paper's 2 D.

    gate=True: S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T and z_t likewise, g_t = sigmoid(w_g . x_t + b_g) for each
    head of keys (Eq. 7), so key s weighs (1 - g_s) prod_{s < r <= t} g_r. The input `log_gate` is log g_t; `activate`
    makes it from w_g . x_t, the layer's projection of its own input x_t. Padding has g = 1: it forgets nothing.

    Cost: O(length x num_features x (dim + value)) time, a state of num_features x (value + 1) numbers per head, one
    more with a gate. Lost against softmax: unit vectors bound the sharpness at exp(2 / sigma^2); the estimate is
    signed, so a total may be near 0 or below it. It keeps its sign and a magnitude of at least 1e-6 of the largest gate
    weight; `nonpositive` counts how often it fails to be positive (with D = 64 and 100 unrelated keys: never at sigma
    1, in 9 % of the rows at 0.5, in half of them at 0.25).

    In the gate's sums log g counts as at least -800, and 1e-30 is added to 1 - g, so that a gate of exactly 1 learns
    too; while all gates are 1, nothing is written.

    Raises:
        ConfigError: an odd num_features for feature_map="trigonometric".
        UnsupportedError: gate=True without causal=True.

    Example:
        >>> import torch
        >>> from regard import Heads, weights
        >>> x, log_gate = torch.ones(1, 1, 3, 8), torch.full((1, 1, 3, 1), 0.5).log()
        >>> attention = Rfa(Heads(count=1, key_dim=8, causal=True), gate=True)
        >>> shares = weights(attention, x, x, inputs={"log_gate": log_gate})[0, 0, 2]
        >>> (7 * shares).round().tolist()  # a gate of 1 / 2 halves the past at every step
        [1.0, 2.0, 4.0]

    Source: Peng et al. 2021, Theorem 1, Eqs. 4-7, section 3.1; arc-cosine: Cho and Saul 2009.
    """

    default_info = Info(
        title="Random feature attention",
        source="Peng et al. 2021, Random Feature Attention, arXiv:2103.02143, Theorem 1, Eqs. 4-7",
        supports=Supports.all(but=("bias", "marks", "dropout")),
        time=1,
        memory=1,
        state="constant",
        nonnegative=False,
        sees_content_only=True,
        stochastic=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"num_features": 32},
        {"num_features": 32, "gate": True},
        {"num_features": 2, "feature_map": "arc_cosine"},
    )
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "its weights are products of features, so no term can be added to a logit",
        "bidirectional": "gate=True forgets along the sequence",
        "cross": "gate=True forgets along the sequence",
    }
    maps: ClassVar[Mapping[str, str]] = {"trigonometric": "fourier_random", "arc_cosine": "arc_cosine_random"}

    num_features: Annotated[int, Ge(1)] = 128
    """features per key, the paper's 2 D; even for `trigonometric`"""
    feature_map: Literal["trigonometric", "arc_cosine"] = "trigonometric"
    """`arc_cosine` is D^(-1/2) max(W x', 0), another kernel, never negative"""
    sigma: Annotated[float, Gt(0)] = 1.0
    """at first, of every head and channel"""
    gate: bool = False
    """recency gate; causal only"""
    orthogonal: bool = False
    """rows of W orthogonal in blocks of dim, instead of independent (the paper's)"""
    pool_size: Annotated[int, Ge(1)] = 200
    """matrices of each head from which training draws"""
    redraw_interval: Annotated[int, Ge(1)] | None = 1
    """training calls between draws; None: never. A recomputed block counts once"""
    log_sigma: nn.Parameter = weight()
    gate_bias: nn.Parameter = weight()
    """b_g"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """A gate is an input along one sequence; the two kernels differ in sign."""
        gate, arc = options["gate"], options["feature_map"] == "arc_cosine"
        return replace(
            cls.default_info,
            supports=replace(cls.default_info.supports, bidirectional=not gate, cross=not gate),
            inputs={"log_gate": Input(slots="keys", heads="key", high=0.0)} if gate else {},
            rows_sum_to_one=not arc,  # arc-cosine features of a query and of every key may be disjoint
            nonnegative=arc,
            sees_content_only=not gate,
        )

    def setup(self) -> None:
        count, dim = self.heads.kv_heads, self.heads.key_dim
        self.log_sigma = nn.Parameter(torch.full((count, dim), self.sigma).log())
        if self.gate:
            self.gate_bias = nn.Parameter(torch.full((count,), GATE_START))
        super().setup()

    @property
    def law(self) -> tuple[bool, str, int | None]:
        return self.orthogonal, "chi", self.pool_size

    def activate(self, raw: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """log g = log sigmoid(w_g . x + b_g) from w_g . x, in float32 at least: it is added up over the length."""
        exact = {name: x.to(accumulation_dtype(x.dtype)) for name, x in raw.items()}
        return {name: F.logsigmoid(x + self.gate_bias[:, None, None]) for name, x in exact.items()}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """By sums; the totals are kept away from 0 here, so the operator does not divide."""
        past = call.state
        assert past is None or isinstance(past, Summary)
        with torch.autocast(q.device.type, enabled=False):
            exact_q, exact_k, exact_v = (x.to(accumulation_dtype(x.dtype)) for x in (q, k, v))
            result, content = self._sums(exact_q, exact_k, exact_v, call, None if past is None else past.content)
            values = result.values / away_from_zero(result.total)[..., None]
        return Attended(values.to(q.dtype), None if past is None else Summary(content, past.length + k.shape[2]))

    def _sums(
        self, q: Tensor, k: Tensor, v: Tensor, call: Call, past: Mapping[str, Tensor] | None
    ) -> tuple[Averaged, dict[str, Tensor]]:
        """Numerators and totals of every row, and the state's content behind this call."""
        inverse, past = (-self.log_sigma.to(q.dtype)).exp()[:, None], past or {}
        of_q, of_k = unit(q.unflatten(1, (k.shape[1], -1))) * inverse[..., None, :], unit(k) * inverse
        of_q, mask = of_q.flatten(1, 2), call.key_mask
        if not self.gate:
            result = self.average(of_q, of_k, v, past.get("sum"), key_mask=mask, normalise=False)
            return result, {"sum": result.sum}
        # float64: sums of logs over a long past lose nothing
        log_gate = call.inputs["log_gate"][..., 0].to(torch.float32 if k.device.type == "mps" else torch.float64)
        log_gate = log_gate.clamp_min(CLOSED)
        decay = log_gate.cumsum(-1)
        # relative to the first slot of the call; what the rows have in common, exp(decay), cancels
        log_rest = torch.log(LEAST_REST - torch.expm1(log_gate))
        log_weight, top = log_rest - decay, past["top"].to(decay.dtype) if past else None
        result = self.average(
            of_q, of_k, v, past.get("sum"), top, key_mask=mask, log_weight=log_weight, normalise=False
        )
        # rows whose gates are all 1 so far have no weight
        asked = decay[..., decay.shape[2] - q.shape[2] :].repeat_interleave(self.heads.group, 1)
        none = result.highest + asked <= math.log(2 * LEAST_REST)
        result = result._replace(
            values=result.values.masked_fill(none[..., None], 0), total=result.total.masked_fill(none, 0)
        )
        whole = decay[..., -1] if k.shape[2] else torch.zeros_like(result.top)
        # the state is relative to its own end, by a top that is a constant to autograd: the sum carries the derivative
        carried = result.sum * (whole - whole.detach()).exp().to(result.sum.dtype)[..., None, None]
        return result, {"sum": carried, "top": (result.top + whole.detach()).to(result.sum.dtype)}

    def state_layout(self) -> dict[str, Entry]:
        """The sums, and with a gate the largest log weight so far."""
        layout = super().state_layout()
        if self.gate:
            layout["top"] = constant(self.heads.kv_heads, dtype="accumulation", fill=float("-inf"))
        return layout

    @torch.no_grad()
    def nonpositive(
        self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None, inputs: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """How often the estimate of a normaliser is not positive: (heads,), the fraction of rows that see a key."""
        inputs = inputs or {}
        if key_mask is not None:
            inputs = {name: self._neutral(name, x, ~key_mask[:, None, :, None]) for name, x in inputs.items()}
        call = self._call(q, k, key_mask, None, None, inputs, None)
        exact_q, exact_k = (x.to(accumulation_dtype(x.dtype)) for x in (q, k))
        total = self._sums(exact_q, exact_k, exact_k[..., :0], call, None)[0].total
        seen = call.visible(q, k).any(-1).expand(q.shape[0], 1, -1)
        return ((total <= 0) & seen).sum((0, 2)) / seen.sum().clamp_min(1)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every weight from every feature, times the product of the gates between, divided by its row's sum."""
        group, seen = self.heads.group, call.visible(q, k)
        w = self.projection.to(q.dtype) / self.log_sigma.to(q.dtype).exp()[:, None]
        w = w.repeat_interleave(group, 0)
        q, k = (x / _or_one(x.detach().abs().amax(-1, keepdim=True)) for x in (q, k))  # squares of x may leave the type
        q, k = (x / _or_one(x.square().sum(-1, keepdim=True).sqrt()) for x in (q, k))
        a = torch.einsum("bhid,hrd->bhir", q, w)[..., None, :]
        b = torch.einsum("bhjd,hrd->bhjr", k.repeat_interleave(group, 1), w)[..., None, :, :]
        if self.feature_map == "arc_cosine":
            weights = (a.clamp_min(0) * b.clamp_min(0)).mean(-1)
        else:
            weights = torch.cos(a - b).mean(-1)
        if self.gate:
            recency = self._gate_products(call, q).repeat_interleave(group, 1).masked_fill(~seen, 0)
            largest = recency.amax(-1, keepdim=True)
            weights = weights * recency / torch.where(largest == 0, 1, largest)
        weights = weights.masked_fill(~seen, 0)
        total = weights.sum(-1, keepdim=True)
        total = torch.where(total < 0, total.clamp_max(-SMALLEST), total.clamp_min(SMALLEST))
        return weights @ v.repeat_interleave(group, 1) / total

    def _gate_products(self, call: Call, q: Tensor) -> Tensor:
        """(1 - g_s) prod_{s < r <= t} g_r, (batch, kv_heads, queries, keys)."""
        log_gate = call.inputs["log_gate"][..., 0].to(q.dtype).clamp_min(CLOSED)
        slots = torch.arange(log_gate.shape[2], device=q.device)
        t, s = slots[call.query_start :][: q.shape[2], None, None], slots[:, None]
        between = ((s < slots) & (slots <= t)).to(q.dtype)
        kept = torch.exp(torch.einsum("tsr,bhr->bhts", between, log_gate))
        return (LEAST_REST - torch.expm1(log_gate))[..., None, :] * kept


def unit(x: Tensor) -> Tensor:
    """x / |x|, and 0 at 0, with a gradient that is finite there too; squares neither overflow nor underflow."""
    square = x.square().sum(-1, keepdim=True)
    if short(square) and known_within(square, torch.finfo(square.dtype).tiny ** 0.5):
        return x * square.rsqrt()
    x, _ = balanced(x, raised=True)
    square = x.square().sum(-1, keepdim=True)
    return x * square.masked_fill(square == 0, 1).rsqrt()


def _or_one(size: Tensor) -> Tensor:
    """A divisor: 1 in place of 0."""
    return torch.where(size == 0, 1, size)


def away_from_zero(total: Tensor) -> Tensor:
    """The totals with their sign and a magnitude of at least `SMALLEST`; no gradient where that acts."""
    return torch.where(total < 0, total.clamp_max(-SMALLEST), total.clamp_min(SMALLEST))
