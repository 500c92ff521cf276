"""Linear randomized attention: a few proposals shared by all queries, weighted by multiple importance sampling."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple, final

import torch
import torch.nn.functional as F
from annotated_types import Ge
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.core.attention import Attended, Attention, Call, accumulation_dtype, generator
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.engines.sums.noise import counted_call, position_noise
from regard.engines.tiles import tiled_attention
from regard.patterns import everything

SMALLEST = 1e-8
"""to which the published code clamps alpha: the correction may take it below 0"""


class Proposals(NamedTuple):
    """g_c = N(mean_c, I), and a draw of each."""

    queries: Float[Tensor, "batch heads landmarks dim"]
    """q~_c"""
    means: Float[Tensor, "batch heads landmarks dim"]
    draws: Float[Tensor, "batch heads landmarks dim"]


@final
class Lara(Attention):
    """Randomized attention from C shared proposals: out_n = sum_c W_nc f(w_c), w_c ~ g_c = N(mu_c, I).

    With q, k scaled by dim^(-1/4): f(w) = sum_m softmax_m(w . k_m - |k_m|^2 / 2) v_m;
    W_nc = softmax_c(log alpha_nc + w_c . q_n + logsumexp_m(w_c . k_m - |k_m|^2 / 2) - (w_c . mu_c - |mu_c|^2 / 2));
    mu_c = q~_c + k~_c, landmarks: LayerNorm(Linear(mean of segment c)) of queries and of keys. alpha_nc is
    g_c(w_c) / sum_c' g_c'(w_c) (the balance heuristic) + a (r_nc - mean_c' r_nc'), r_nc = softmax_n(q_n . q~_c), at
    least 1e-8.

    Cost: O((queries + keys) num_landmarks (dim + value) + num_landmarks^2 dim) time, O(length num_landmarks) memory.
    Lost: exactness; with a > 0 the error does not vanish as landmarks grow (the correction is of order a / queries
    each, the balance heuristic of order 1 / num_landmarks). No causal form: landmarks see every position.

    Evaluation takes w_c = mu_c, as the published code does; training draws w_c anew at every call, the same for every
    element of the batch. A segment is a run of real tokens: with L of them, those of rank floor(c L / C) to
    ceil((c + 1) L / C) - 1. Where there are as many queries as keys, `key_mask` is taken to hide queries too, from
    landmarks and from r: queries that stand for padding would otherwise change the others.

    Raises:
        ConfigError: a coefficient of alpha="balance".

    Example:
        >>> from regard import Heads
        >>> q, k, v = torch.randn(3, 1, 1, 10, 8)
        >>> one, two = (Lara(Heads(count=1, key_dim=8), num_landmarks=count)(q, k, v).values for count in (1, 2))
        >>> [torch.allclose(x, x[:, :, :1]) for x in (one, two)]  # with one landmark all queries have one average
        [True, False]

    Source: Zheng, Wang, Kong 2022, Linear Complexity Randomized Self-attention Mechanism, section 4, and its code.
    """

    default_info = Info(
        title="Linear randomized attention (LARA)",
        source="Zheng, Wang, Kong 2022, Linear Complexity Randomized Self-attention Mechanism, arXiv:2204.04667, "
        "section 4",
        supports=Supports(bidirectional=True, cross=True, key_mask=True),
        time=1,
        memory=1,
        mixes_queries=True,
        stochastic=True,
    )
    draws: ClassVar[str] = "position noise"
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"num_landmarks": 4},
        {"num_landmarks": 7, "coefficient": 2.0, "pool": "mixed"},
        {"num_landmarks": 3, "alpha": "balance"},
    )
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "its weights are products of features, so no term can be added to a logit",
        "causal": "its landmarks are means over all positions, later ones included",
        "state": "its landmarks change with every token",
    }

    num_landmarks: Annotated[int, Ge(1)] = 49
    """C"""
    alpha: Literal["full", "balance"] = "full"
    """`full` as above, `balance` without the correction"""
    coefficient: Annotated[float, Ge(0)] | None = None
    """a, of `full` (2 in published runs); None: 1"""
    pool: Literal["mean", "mixed"] = "mean"
    """`mixed` replaces k~ by softmax(k~ k~^T) k~"""
    seed: Tensor = weight()
    calls: Tensor = weight()
    """in training, so far"""

    def check_options(self) -> None:
        if self.alpha == "balance" and self.coefficient is not None:
            raise ConfigError(f"lara: coefficient belongs to alpha='full', got coefficient={self.coefficient}")

    def setup(self) -> None:
        if self.alpha == "full" and self.coefficient is None:
            self.coefficient = 1.0
        for name in ("query", "key"):
            source, dim = generator(self.heads.seed, "lara", name), self.heads.key_dim
            self.register_parameter(f"{name}_weight", nn.Parameter(torch.randn(dim, dim, generator=source) / dim**0.5))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.zeros(dim)))
            self.register_parameter(f"{name}_gain", nn.Parameter(torch.ones(dim)))
            self.register_parameter(f"{name}_shift", nn.Parameter(torch.zeros(dim)))
        self.register_buffer("seed", torch.tensor(self.heads.seed))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def redraw(self, generator: torch.Generator) -> None:
        """Other draws in training."""
        self.seed.fill_(int(torch.randint(2**62, (), generator=generator)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """f at every draw by tiles, then one weight per query and landmark."""
        dtype, key_mask = accumulation_dtype(q.dtype), call.key_mask
        asking = key_mask if call.paired else None
        with torch.autocast(q.device.type, enabled=False):
            exact_q, exact_k = (x.to(dtype) * q.shape[3] ** -0.25 for x in (q, k))
            g = self._proposals(exact_q, exact_k, asking, key_mask)
            half = exact_k.square().sum(-1, keepdim=True) / 2
            values, lse = tiled_attention(
                F.pad(g.draws, (0, 1), value=1.0),
                torch.cat([exact_k, -half], -1),
                v.to(dtype),
                everything,
                scale=1.0,
                key_mask=key_mask,
            )
            none = torch.full((len(k),), not k.shape[2], device=k.device) if key_mask is None else ~key_mask.any(1)
            # Without any key every f is 0, whatever its weight; of keys whose squares are infinite nothing is known.
            lse = torch.where(none[:, None, None], 0.0, lse.masked_fill(lse.isneginf(), float("nan")))
            logits = exact_q @ g.draws.mT + (self._log_alpha(exact_q, g, asking) + (lse - _log_density(g))[:, :, None])
            return Attended((logits.softmax(-1) @ values).to(q.dtype))

    def _proposals(self, q: Tensor, k: Tensor, asking: Tensor | None, real: Tensor | None) -> Proposals:
        count, heads = self.num_landmarks, self.heads
        queries = self._landmark("query", _segment_means(q, asking, count))
        keys = self._landmark("key", _segment_means(k, real, count))
        if self.pool == "mixed":
            keys = (keys @ keys.mT).softmax(-1) @ keys
        means = draws = queries + keys.repeat_interleave(heads.group, 1)
        if self.training:
            source = torch.stack([self.seed, counted_call(self.calls)])
            draws = means + position_noise(q.detach(), source, 0, count, heads.count, 1)[0][:, :, 0].to(means.dtype)
        return Proposals(queries, means, draws)

    def _landmark(self, name: str, means: Tensor) -> Tensor:
        weight, bias, gain, shift = (
            getattr(self, f"{name}_{part}").to(means.dtype) for part in ("weight", "bias", "gain", "shift")
        )
        return F.layer_norm(F.linear(means, weight, bias), gain.shape, gain, shift)

    def _log_alpha(self, q: Tensor, g: Proposals, asking: Tensor | None) -> Tensor:
        """(batch, heads, queries or 1, landmarks)."""
        squares = g.means.square().sum(-1) / 2
        balance = _log_density(g) - (g.draws @ g.means.mT - squares[:, :, None]).logsumexp(-1)
        if self.coefficient is None:
            return balance[:, :, None]
        ratings = q @ g.queries.mT
        if asking is not None:
            ratings = ratings.masked_fill(~asking[:, None, :, None], torch.finfo(ratings.dtype).min)
        ratings = ratings.softmax(2)
        alpha = balance.exp()[:, :, None] + self.coefficient * (ratings - ratings.mean(-1, keepdim=True))
        return alpha.clamp_min(SMALLEST).log()

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Evaluation, where w_c = mu_c: element by element of the batch and landmark by landmark."""
        out, (queries, keys) = [], (q.shape[2], k.shape[2])
        for row in range(q.shape[0]):
            real = torch.arange(keys, device=q.device)
            real = real if call.key_mask is None else real[call.key_mask[row]]
            asking = real if call.paired else torch.arange(queries, device=q.device)
            if len(real) == 0:
                out.append(q.new_zeros(q.shape[1], queries, v.shape[3]) + 0 * q[row].sum())
                continue
            x, y = q[row] / q.shape[3] ** 0.25, (k[row] / k.shape[3] ** 0.25)[:, real]
            tq = self._explicit_landmarks("query", x[:, asking])
            tk = self._explicit_landmarks("key", y)
            if self.pool == "mixed":
                tk = torch.einsum("hcd,hed->hce", torch.softmax(torch.einsum("hcd,hed->hce", tk, tk), -1), tk.mT)
            y, tk, z = (part.repeat_interleave(self.heads.group, 0) for part in (y, tk, v[row][:, real]))
            mu = tq + tk
            # log g_c(w_c') up to a constant: -|w_c' - mu_c|^2 / 2
            log_g = -((mu[:, :, None] - mu[:, None]) ** 2).sum(-1) / 2
            alpha = (log_g.diagonal(dim1=1, dim2=2) - torch.logsumexp(log_g, -1)).exp()[:, None]
            if self.coefficient is not None:
                r = torch.softmax(torch.einsum("hnd,hcd->hnc", x[:, asking], tq), 1)
                r = x.new_zeros(*x.shape[:2], mu.shape[1]).index_copy(1, asking, r)
                alpha = (alpha + self.coefficient * (r - r.mean(-1, keepdim=True))).clamp_min(SMALLEST)
            xi_k = torch.einsum("hcd,hmd->hcm", mu, y) - (y**2).sum(-1)[:, None] / 2
            xi_q = torch.einsum("hnd,hcd->hnc", x, mu) - (x**2).sum(-1, keepdim=True) / 2
            w = alpha.log() + xi_q + torch.logsumexp(xi_k, -1)[:, None] - (mu**2).sum(-1)[:, None] / 2
            out.append(torch.softmax(w, -1) @ (torch.softmax(xi_k, -1) @ z))
        return torch.stack(out) if out else q.new_zeros(0, q.shape[1], queries, v.shape[3])

    def _explicit_landmarks(self, name: str, x: Tensor) -> Tensor:
        weight, bias, gain, shift = (getattr(self, f"{name}_{p}") for p in ("weight", "bias", "gain", "shift"))
        count, length = self.num_landmarks, x.shape[1]
        bounds = [(c * length // count, -(-(c + 1) * length // count)) for c in range(count)]
        y = torch.stack([x[:, first:last].mean(1) for first, last in bounds], 1) @ weight.mT + bias
        centred = y - y.mean(-1, keepdim=True)
        return centred / ((centred**2).mean(-1, keepdim=True) + 1e-5).sqrt() * gain + shift


def _log_density(g: Proposals) -> Float[Tensor, "batch heads landmarks"]:
    """log g_c(w_c) - log N(w_c; 0, I) = w_c . mu_c - |mu_c|^2 / 2."""
    return ((g.draws - g.means / 2) * g.means).sum(-1)


def _segment_means(
    x: Float[Tensor, "batch heads length dim"], real: Bool[Tensor, "batch length"] | None, count: int
) -> Float[Tensor, "batch heads landmarks dim"]:
    """Means over segments of the real tokens, as even as they come; where tokens are few they overlap."""
    if real is None:
        real = x.new_ones(1, x.shape[2], dtype=torch.bool)
    rank, length, at = real.cumsum(1) - 1, real.sum(1)[:, None, None], torch.arange(count, device=x.device)[:, None]
    first, last = at * length // count, ((at + 1) * length + count - 1) // count
    inside = ((rank[:, None] >= first) & (rank[:, None] < last) & real[:, None]).to(x.dtype)
    inside = inside / inside.sum(-1, keepdim=True).clamp_min(1)
    return inside[:, None] @ x.masked_fill(~real[:, None, :, None], 0)
