"""Random feature attention (RFA): a Gaussian kernel of unit vectors, with an optional recency gate."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.kernel import RandomKernel, visible
from regard.core import Attended, ScoreBias, State, Summary, generator
from regard.engines.sums.passes import LOWEST, accumulator
from regard.engines.sums.step import Averaged
from regard.errors import ConfigError, nearest
from regard.features import FEATURE_MAPS
from regard.info import Heads, Info, Supports

MAPS = {"trigonometric": "fourier_random", "arc_cosine": "arc_cosine_random"}
IMPLS = ("auto", "torch", "reference")
SMALLEST = 1e-6
"""of the magnitude of a row's total, beside the largest gate weight (1 without a gate)"""
GATE_START = 3.0
"""b_g at first: a gate of 0.95, a memory of some 20 tokens"""


@final
class Rfa(RandomKernel):
    """out_t = phi(q_t) S_t / phi(q_t) . z_t, S_t = sum_{s <= t} phi(k_s) v_s^T, z_t = sum_{s <= t} phi(k_s).

    phi(x) = D^(-1/2) [sin W x', cos W x'], x' = x / |x|, rows of W ~ N(0, diag(1 / sigma^2)): E[phi(x) . phi(y)] is
    exp(-sum_c (x'_c - y'_c)^2 / (2 sigma_c^2)), for one sigma exp(x' . y' / sigma^2) up to a factor that cancels
    (the paper's Theorem 1 and Eq. 4). sigma is learned, a vector per head. Our num_features is the paper's 2 D.

    gate=True: S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T and z_t likewise, g_t = sigmoid(w_g . k_t + b_g) (Eq. 7), so
    key s weighs (1 - g_s) prod_{s < r <= t} g_r. The paper's gate reads the input x_t; here the key of slot t, its
    projection, which every slot has: leading keys, states and grouped heads.

    Cost: O(length x num_features x (dim + value)) time, a state of num_features x (value + 1) numbers per head, one
    more with a gate. Lost against softmax: unit vectors bound the sharpness at exp(2 / sigma^2); the estimate is
    signed, so a total may be near 0 or below it. It keeps its sign and a magnitude of at least 1e-6 of the largest gate
    weight; `nonpositive` counts how often it fails to be positive (with D = 64 and 100 unrelated keys: never at sigma
    1, in 9 % of the rows at 0.5, in half of them at 0.25).

    Args:
        num_features: features per key, the paper's 2 D; even for feature_map="trigonometric".
        feature_map: "trigonometric", or "arc_cosine": D^(-1/2) max(W x', 0), another kernel, never negative.
        sigma: at first, of every head and channel.
        gate: recency gate; causal only.
        orthogonal: rows of W orthogonal in blocks of dim, instead of independent (the paper's).
        pool_size: matrices of each head from which training draws.
        redraw_interval: training calls between draws; None: never. A recomputed block counts once.
        impl: "auto" and "torch" are the chunked operator, "reference" the definition (no state,
            and no schedule: only `redraw` draws again).

    Raises:
        ConfigError: an option outside its values.
        UnsupportedError: gate=True without causal=True.

    Example:
        >>> import torch
        >>> from regard.core import Heads
        >>> attention = Rfa(Heads(count=2, key_dim=8, causal=True), gate=True)
        >>> attention(*torch.randn(3, 1, 2, 5, 8)).values.shape
        torch.Size([1, 2, 5, 8])

    Source: Peng et al. 2021, Theorem 1, Eqs. 4-7, section 3.1; arc-cosine: Cho and Saul 2009.
    """

    info = Info(
        title="Random feature attention",
        source="Peng et al. 2021, Random Feature Attention, arXiv:2103.02143, Theorem 1, Eqs. 4-7",
        supports=Supports(causal=True, bidirectional=True, cross=True, key_mask=True, state=True, prefix=True),
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
        "state": "impl='reference' has none",
    }

    pool_size: int

    def __init__(
        self,
        heads: Heads,
        *,
        num_features: int = 128,
        feature_map: Literal["trigonometric", "arc_cosine"] = "trigonometric",
        sigma: float = 1.0,
        gate: bool = False,
        orthogonal: bool = False,
        pool_size: int = 200,
        redraw_interval: int | None = 1,
        impl: Literal["auto", "torch", "reference"] = "auto",
    ) -> None:
        super().__init__(
            heads,
            num_features=num_features,
            feature_map=feature_map,
            sigma=sigma,
            gate=gate,
            orthogonal=orthogonal,
            pool_size=pool_size,
            redraw_interval=redraw_interval,
            impl=impl,
        )
        for name, value, allowed in (("feature_map", feature_map, (*MAPS,)), ("impl", impl, IMPLS)):
            if value not in allowed:
                raise ConfigError(f"rfa has no {name}={value!r}: {nearest(value, allowed)}")
        if pool_size < 1:
            raise ConfigError(f"rfa: pool_size must be at least 1, got {pool_size}")
        if not sigma > 0:
            raise ConfigError(f"rfa needs a positive sigma, got {sigma}")
        dim, count = heads.key_dim, heads.kv_heads
        self.feature_map, self.sigma, self.gate, self.orthogonal = feature_map, sigma, gate, orthogonal
        self.pool_size, self.redraw_interval, self.impl, self.weighted = pool_size, redraw_interval, impl, gate
        self.log_sigma = nn.Parameter(torch.full((count, dim), sigma).log())
        if gate:
            drawn = torch.randn(count, dim, generator=generator(heads.seed, "gate"))
            self.gate_weight = nn.Parameter(drawn * dim**-0.5)
            self.gate_bias = nn.Parameter(torch.full((count,), GATE_START))
        self.take(FEATURE_MAPS[MAPS[feature_map]], num_features)

    @classmethod
    def facts(cls, **options: object) -> Info:
        gate, arc = bool(options.get("gate")), options.get("feature_map") == "arc_cosine"
        explicit = options.get("impl") == "reference"
        return replace(
            cls.info,
            supports=replace(cls.info.supports, bidirectional=not gate, cross=not gate, state=not explicit),
            time=2 if explicit else 1,
            memory=2 if explicit else 1,
            state="none" if explicit else "constant",
            rows_sum_to_one=not arc,  # arc-cosine features of a query and of every key may be disjoint
            nonnegative=arc,
            sees_content_only=not gate,
        )

    def by_sums(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None, state: State | None) -> Attended:
        past = self.past(state, q)
        with torch.autocast(q.device.type, enabled=False):
            q32, k32, v32 = (x.to(accumulator(x.dtype)) for x in (q, k, v))
            result, content = self._sums(q32, k32, v32, key_mask, past)
            values = (result.values / away_from_zero(result.total)[..., None]).to(q.dtype)
        return Attended(values, None if state is None else Summary(content, past.length + k.shape[2]), {})

    def _sums(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, past: Summary
    ) -> tuple[Averaged, dict[str, Tensor]]:
        """Numerators and totals of every row, and the state's content behind this call."""
        inverse = (-self.log_sigma.to(q.dtype)).exp()[:, None]
        of_q, of_k = unit(q.unflatten(1, (k.shape[1], -1))) * inverse[..., None, :], unit(k) * inverse
        of_q = of_q.flatten(1, 2)
        if not self.gate:
            result = self.average(of_q, of_k, v, past["sum"], key_mask=key_mask, normalise=False)
            return result, {"sum": result.sum}
        log_gate, log_weight = self._gates(k, key_mask)
        decay = log_gate.cumsum(-1)
        # relative to the first slot of the call; what the rows have in common, exp(decay), cancels
        result = self.average(
            of_q,
            of_k,
            v,
            past["sum"],
            past["top"].to(decay.dtype),
            key_mask=key_mask,
            log_weight=log_weight - decay,
            normalise=False,
        )
        whole = decay[..., -1] if k.shape[2] else torch.zeros_like(result.top)
        # the state is relative to its own end, by a top that is a constant to autograd: the sum carries the derivative
        carried = result.sum * (whole - whole.detach()).exp().to(result.sum.dtype)[..., None, None]
        return result, {"sum": carried, "top": (result.top + whole.detach()).to(past["top"].dtype)}

    def _gates(self, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """log g and log(1 - g), (batch, kv_heads, keys), in float64: their sum over a long past loses nothing."""
        precise = torch.float32 if k.device.type == "mps" else torch.float64
        logit = (k * self.gate_weight.to(k.dtype)[:, None]).sum(-1) + self.gate_bias.to(k.dtype)[:, None]
        logit = logit.to(precise)
        log_gate = F.logsigmoid(logit)
        if key_mask is not None:
            log_gate = log_gate.masked_fill(~key_mask[:, None], 0)  # g = 1: padding forgets nothing
        return log_gate, F.logsigmoid(-logit)

    @torch.no_grad()
    def nonpositive(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        """How often the estimate of a normaliser is not positive: (heads,), the fraction of rows that see a key."""
        start = self.start(q.shape[0], device=q.device, dtype=q.dtype)
        start = Summary({**start.content, "sum": start["sum"][..., -1:]})
        exact_q, exact_k = (x.to(accumulator(x.dtype)) for x in (q, k))
        total = self._sums(exact_q, exact_k, exact_k[..., :0], key_mask, start)[0].total
        seen = visible(q, k, self.heads.causal, key_mask).any(-1).expand(q.shape[0], 1, -1)
        return ((total <= 0) & seen).sum((0, 2)) / seen.sum().clamp_min(1)

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
        """Every weight from every feature, times the product of the gates between, divided by its row's sum."""
        del bias, marks
        group, seen = self.heads.group, visible(q, k, self.heads.causal, key_mask)
        w = self.projection.to(q.dtype) / self.log_sigma.to(q.dtype).exp()[:, None]
        w = w.repeat_interleave(group, 0)
        length_q, length_k = (x.square().sum(-1, keepdim=True).sqrt() for x in (q, k))
        a = torch.einsum("bhid,hrd->bhir", q / torch.where(length_q == 0, 1, length_q), w)[..., None, :]
        unit_k = (k / torch.where(length_k == 0, 1, length_k)).repeat_interleave(group, 1)
        b = torch.einsum("bhjd,hrd->bhjr", unit_k, w)[..., None, :, :]
        if self.feature_map == "arc_cosine":
            weights = (a.clamp_min(0) * b.clamp_min(0)).mean(-1)
        else:
            weights = torch.cos(a - b).mean(-1)
        if self.gate:
            logs = self._gate_products(k, key_mask, q.shape[2]).repeat_interleave(group, 1)
            logs = logs.masked_fill(~seen, float("-inf"))
            weights = weights * torch.exp(logs - logs.amax(-1, keepdim=True).clamp_min(LOWEST))
        weights = weights.masked_fill(~seen, 0)
        total = weights.sum(-1, keepdim=True)
        total = torch.where(total < 0, total.clamp_max(-SMALLEST), total.clamp_min(SMALLEST))
        return weights @ v.repeat_interleave(group, 1) / total

    def _gate_products(self, k: Tensor, key_mask: Tensor | None, queries: int) -> Tensor:
        """log (1 - g_s) prod_{s < r <= t} g_r, (batch, kv_heads, queries, keys)."""
        gate = torch.einsum("bhjd,hd->bhj", k, self.gate_weight.to(k.dtype)) + self.gate_bias.to(k.dtype)[:, None]
        slots = torch.arange(k.shape[2], device=k.device)
        t, s = slots[len(slots) - queries :, None, None], slots[:, None]
        between = ((s < slots) & (slots <= t)).to(k.dtype)
        log_gate = -torch.log1p(torch.exp(-gate))
        if key_mask is not None:
            log_gate = log_gate * key_mask[:, None]
        return torch.einsum("tsr,bhr->bhts", between, log_gate) - torch.log1p(torch.exp(gate))[..., None, :]


def unit(x: Tensor) -> Tensor:
    """x / |x|, and 0 at 0, with a gradient that is finite there too."""
    square = x.square().sum(-1, keepdim=True)
    return x * square.masked_fill(square == 0, 1).rsqrt()


def away_from_zero(total: Tensor) -> Tensor:
    """The totals with their sign and a magnitude of at least `SMALLEST`; no gradient where that acts."""
    return torch.where(total < 0, total.clamp_max(-SMALLEST), total.clamp_min(SMALLEST))
