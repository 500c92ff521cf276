"""Self-normalised importance sampling is biased as 1 / S, multiple importance sampling is not.

Claim: Random features are self-normalised importance sampling of randomized attention, whose bias falls as 1 / S.
Multiple importance sampling, one sample from each of C proposals, is unbiased for all weights alpha_c(w) that sum to
one over c; the balance heuristic has less variance than equal weights, and the optimal weights have the least.
Source: Zheng, Wang, Kong 2022, section 2.2 and 4; Veach and Guibas 1995; Owen 2013, chapter 9 (1 / S); Kondapaneni et
al. 2019 (optimal weights)
Control: Weights that sum to 1.1 give 1.1 times the output. The same estimates with 1 % of the values' root mean square
added to their mean are told from softmax, for every choice of weights.
Measured: A query and a few keys in float64. Self-normalised: Performer with independent rows, S features, its bias as
root mean square of the mean error less what the variance leaves in it. Multiple: p(w) / g_c(w) alpha_c(w) f(w) summed
over normal proposals around the keys; the optimal weights of one output coordinate come from moments estimated with
samples of their own, so they are fixed while they are tested.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from evidence.claims._base import Claim, Control, Curve, Finding, Observation, Plot, Revision, setting
from evidence.claims._growth import exponent
from evidence.claims.randomized_attention_bias import ALARM, SMALLEST_BIAS, Moments, moments
from regard import Heads, build
from regard.core.attention import generator

EXCESS = 1.1
"""the sum of the weights of the control"""


class ImportanceSampling(Claim):
    controls = (
        Control("excess", "weights that sum to 1.1: estimate / softmax", EXCESS, tolerance=0.02),
        Control("power", "coordinates where a bias of 1 % is seen", 1.0, tolerance=0.0),
    )
    findings = (
        Finding("slope", "self-normalised: bias ~ S to the power of", at_least=-1.25, at_most=-0.75),
        Finding("log z last", "self-normalised, most samples: log10 of largest |z|", at_least=1.0),
        Finding("beyond equal", "multiple, alpha = 1 / C: coordinates with |z| > 5", at_most=0),
        Finding("beyond balance", "multiple, balance heuristic: coordinates with |z| > 5", at_most=0),
        Finding("beyond corrected", "multiple, balance + r_c - mean r: coordinates with |z| > 5", at_most=0),
        Finding("beyond optimal", "multiple, optimal alpha: coordinates with |z| > 5", at_most=0),
        Finding("log z normalised", "multiple, self-normalised: log10 of largest |z|", at_least=1.0),
        Finding("gain balance", "variance, balance / equal", at_most=0.95),
        Finding("gain optimal", "variance, optimal / balance", at_most=0.95),
    )
    revised = Revision(
        "Of unbiased estimators it judged the largest z, and judges how many coordinates lie beyond 5; the "
        "optimal alpha is judged on its own coordinate.",
        (0, 1, 2),
    )
    plots = (
        Plot("bias", "Bias of the self-normalised estimate", "samples", "of the values", log_x=True, log_y=True),
        Plot("variance", "Standard deviation of multiple importance sampling", "", "of the values"),
    )

    normalised: str = "performer(num_features={count}, orthogonal=False)"
    """random features whose S = num_features"""
    total: float = 1.0
    """the sum of the weights where they should sum to one"""
    keys: int = 4
    dim: int = 2
    norm: float = 0.6
    """of q and k, scaled by dim^(-1/4)"""
    counts: tuple[int, ...] = setting((8, 16, 32, 64), tiny=(8, 32))
    heads: int = setting(4096, tiny=256)
    redraws: int = setting(100, tiny=40)
    trials: int = setting(300_000, tiny=60_000)
    """of multiple importance sampling"""

    @torch.no_grad()
    def observe(self, seed: int) -> Observation:
        draw = generator(seed, "importance_sampling")
        q, k, v = (torch.randn(n, self.dim, generator=draw, dtype=torch.float64) for n in (1, self.keys, self.keys))
        q, k = (self.norm * normalize(x, dim=-1) for x in (q, k))  # scaled by dim^(-1/4): a logit is q . k
        exact = (q @ k.mT).softmax(-1) @ v
        size = float(v.square().mean().sqrt())
        by_count = [self.self_normalised(count, q, k, v, exact, seed) for count in self.counts]
        biases = [one.bias / size for one in by_count]
        values = {"slope": exponent(self.counts, biases), "log z last": math.log10(by_count[-1].z)}
        multiple = self.multiple(q, k, v, exact[0], draw)
        values |= {f"z {name}": one.z for name, one in multiple.items()}
        values |= {f"beyond {name}": one.beyond for name, one in multiple.items()}
        values["log z normalised"] = math.log10(multiple["normalised"].z)
        of_one = {name: float(one.error[0]) for name, one in multiple.items()}  # the coordinate that is optimised
        values["gain balance"] = (of_one["balance"] / of_one["equal"]) ** 2
        values["gain optimal"] = (of_one["optimal"] / of_one["balance"]) ** 2
        largest = int(exact[0].abs().argmax())
        values["excess"] = float(1 + multiple["excess"].off[largest] / exact[0, largest])
        tested = [multiple[name] for name in ("equal", "balance", "corrected", "optimal")]
        seen = [(one.off + SMALLEST_BIAS * size) / one.error > ALARM for one in tested]
        values["power"] = float(torch.cat(seen).double().mean())
        names = ["equal", "balance", "corrected", "optimal", "normalised"]
        spread: Curve = names, [of_one[name] * self.trials**0.5 / size for name in names]
        curves: dict[str, Curve] = {"bias": (self.counts, biases)}
        curves["standard error"] = self.counts, [float(one.error.square().mean().sqrt() / size) for one in by_count]
        return Observation(values, {"bias": curves, "variance": {"one sample of each proposal": spread}})

    def self_normalised(self, count: int, q: Tensor, k: Tensor, v: Tensor, exact: Tensor, seed: int) -> Moments:
        """Every head has features of its own."""
        q, k, v = (x.expand(1, self.heads, -1, -1) for x in (q * self.dim**0.25, k * self.dim**0.25, v))
        mechanism = (
            build(self.normalised.format(count=count), Heads(count=self.heads, key_dim=self.dim)).double().eval()
        )
        draw = generator(seed, "features", count)

        def estimate() -> Float[Tensor, "heads queries dim"]:
            # as the mechanism draws independent rows, for all heads at once
            mechanism.projection = torch.randn(self.heads, count, self.dim, generator=draw, dtype=q.dtype)
            return mechanism(q, k, v).values[0]

        return moments((estimate() for _ in range(self.redraws)), exact)

    def multiple(self, q: Tensor, k: Tensor, v: Tensor, exact: Tensor, draw: torch.Generator) -> dict[str, Moments]:
        """Estimates with every choice of weights, from the same samples."""
        centres = (q + k) / 2  # towards the means q + k of the components of p, and not equal to them
        case = _Case(q, k, v, centres)
        ratings = (q @ centres.mT).softmax(-1)[0]
        correction = ratings - ratings.mean()

        def corrected(w: Tensor) -> Tensor:
            return case.balance(w) + correction

        solved = case.optimal(self.sample(centres, draw))
        weights: dict[str, Callable[[Tensor], Tensor]] = {
            "equal": lambda w: torch.full((*w.shape[:-1], self.keys), 1 / self.keys, dtype=w.dtype),
            "balance": case.balance,
            "corrected": corrected,
            "optimal": solved,
            "excess": lambda w: EXCESS * case.balance(w),
        }
        w = self.sample(centres, draw)
        at = torch.arange(self.keys)
        ratio = (case.target(w) - case.proposals(w)[:, at, at]).exp()  # p(w_c) / g_c(w_c)
        f = case.values(w)
        results: dict[str, Moments] = {}
        for name, alpha in weights.items():
            share = ratio * alpha(w)[:, at, at] * (1.0 if name == "excess" else self.total)
            read = (
                slice(1) if name == "optimal" else slice(None)
            )  # 1 / f of one coordinate, times f of another: no bound
            results[name] = moments(iter([(share[..., None] * f[..., read]).sum(1)]), exact[read])
            if name == "balance":
                share = share / share.sum(1, keepdim=True)
                results["normalised"] = moments(iter([(share[..., None] * f).sum(1)]), exact)
        return results

    def sample(self, centres: Tensor, draw: torch.Generator) -> Float[Tensor, "trials proposals dim"]:
        """One from each proposal."""
        return centres + torch.randn(self.trials, *centres.shape, generator=draw, dtype=centres.dtype)


@dataclass(frozen=True, eq=False)
class _Case:
    """A query, its keys and the proposals g_c = N(centre_c, I); densities up to the factor that all share."""

    q: Float[Tensor, "1 dim"]
    k: Float[Tensor, "keys dim"]
    v: Float[Tensor, "keys dim"]
    centres: Float[Tensor, "proposals dim"]

    def proposals(self, w: Tensor) -> Float[Tensor, "*samples proposals"]:
        """log g_c(w) for every c."""
        return -(w[..., None, :] - self.centres).square().sum(-1) / 2

    def target(self, w: Tensor) -> Float[Tensor, "*samples"]:
        """log p(w) = log sum_m softmax_m(q . k_m) N(w; q + k_m, I)."""
        shares = (self.q @ self.k.mT).log_softmax(-1)[0]
        return (shares - (w[..., None, :] - self.q - self.k).square().sum(-1) / 2).logsumexp(-1)

    def values(self, w: Tensor) -> Float[Tensor, "*samples dim"]:
        """f(w) = softmax_m(w . k_m - |k_m|^2 / 2) v_m."""
        return (w @ self.k.mT - self.k.square().sum(-1) / 2).softmax(-1) @ self.v

    def balance(self, w: Tensor) -> Float[Tensor, "*samples proposals"]:
        """g_c(w) / sum_c' g_c'(w)."""
        return self.proposals(w).softmax(-1)

    def optimal(self, w: Tensor) -> Callable[[Tensor], Tensor]:
        """alpha_c = a_c g_c / F + g_c / sum g (1 - sum_c' a_c' g_c' / F), F = p f of the first coordinate, A a = b.

        A_cd = int g_c g_d / sum g and b_c = int F g_c / sum g (Kondapaneni et al. 2019, Theorem 1), estimated from
        samples of all the proposals. Any a sums to one.
        """
        shares = self.balance(w).flatten(0, 1)
        # one sample of each proposal has density sum g: int h = E[h / sum g]
        a = shares.mT @ shares
        total = self.proposals(w).logsumexp(-1)
        integrand = (self.target(w) - total).exp() * self.values(w)[..., 0]
        solved = torch.linalg.solve(a, shares.mT @ integrand.flatten())

        def alpha(w: Tensor) -> Tensor:
            logs = self.proposals(w)
            over = (logs - self.target(w)[..., None]).exp() / self.values(w)[..., :1]
            return solved * over + logs.softmax(-1) * (1 - (solved * over).sum(-1, keepdim=True))

        return alpha
