"""Errata of randomized attention, exact and linear, entered into `errata`'s page."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from errata import Row, draw, erratum
from errata_linear import deviations
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard import Attention, Heads


@erratum(
    "Randomized attention of queries and values",
    "softmax attention is the mean of f over a mixture p_i proportional to exp(q_i^T v), of weights pi_m",
    "exp(q_i^T k_m), and pi_m is its softmax over m, with q and k scaled by d^(-1/4)",
)
def queries_and_values() -> list[Row]:
    """Where values are as wide as queries the literal formula can be computed, and its mean is not softmax attention.
    With the keys it is, to chance.
    """
    draws = 20_000
    q, k, v = draw(3, 1, 1, 4, 4)
    x, y = q[0, 0, :1] * 4**-0.25, k[0, 0] * 4**-0.25
    exact = regard.attend(q, k, v, "softmax")[0, 0, 0, 0]
    source = torch.Generator().manual_seed(1)
    chosen = torch.multinomial((x @ v[0, 0].mT)[0].softmax(0), draws, replacement=True, generator=source)
    samples = x + v[0, 0][chosen] + torch.randn(draws, 4, generator=source, dtype=torch.float64)
    literal = (samples @ y.mT - y.square().sum(-1) / 2).softmax(-1) @ v[0, 0, :, 0] - exact
    heads = Heads(count=draws, key_dim=4)
    wide = [part.expand(1, draws, part.shape[2], 4) for part in (q[:, :, :1], k, v)]
    ours = regard.build("randomized", heads).double().eval()(*wide).values[0, :, 0, 0] - exact
    return [Row("mean error over 20,000 samples, in standard errors", deviations(literal), deviations(ours))]


@erratum(
    "M times N distributions",
    "randomized attention samples from MN distributions N(q_n + k_m, I)",
    "from N, one for each query: a mixture of M Gaussians, whose weights are those of softmax attention",
)
def one_mixture_per_query() -> list[Row]:
    """4 queries, 6 keys. With the MN distributions taken alike, the mean sample of a query stands at the average of
    the keys; that of its mixture stands where softmax attention to the keys does.
    """
    draws = 20_000
    q, k = draw(1, 1, 4, 4), draw(1, 1, 6, 4, seed=1)
    exact = regard.weights(regard.build("softmax", Heads(count=1, key_dim=4)).double(), q, k)
    x, y = q[0, 0] * 4**-0.25, k[0, 0] * 4**-0.25
    source, wanted = torch.Generator().manual_seed(1), regard.attend(q, k, y[None, None], "softmax")[0, 0, 0, 0]
    off = []
    for chances in (torch.full((6,), 1 / 6, dtype=torch.float64), exact[0, 0, 0]):
        chosen = torch.multinomial(chances, draws, replacement=True, generator=source)
        samples = x[0] + y[chosen] + torch.randn(draws, 4, generator=source, dtype=torch.float64)
        off.append(deviations(samples[:, 0] - x[0, 0] - wanted))
    return [
        Row("distributions, each of mass 1", str(len(x) * len(y)), f"{exact.sum().item():.0f}"),
        Row("mean of 20,000 samples - q against attention over keys, in standard errors", *off),
    ]


class Proposals(NamedTuple):
    """Of one head, scaled by d^(-1/4): q, k, q~ and the means of g_c."""

    x: Tensor
    y: Tensor
    landmarks: Tensor
    means: Tensor


def proposals(mechanism: Attention, q: Tensor, k: Tensor, count: int) -> Proposals:
    """Means of `count` segments, through the mechanism's projection and normalisation."""
    x, y = (part[0, 0] * part.shape[3] ** -0.25 for part in (q, k))
    found = []
    for name, part in (("query", x), ("key", y)):
        weight, bias, gain, shift = (
            mechanism.get_parameter(f"{name}_{which}").detach() for which in ("weight", "bias", "gain", "shift")
        )
        means = F.linear(part.unflatten(0, (count, -1)).mean(1), weight, bias)
        found.append(F.layer_norm(means, gain.shape, gain, shift))
    return Proposals(x, y, found[0], found[0] + found[1])


def densities(points: Tensor, means: Tensor) -> Tensor:
    """N(point; mean, I) of every point under every mean, up to a constant."""
    return (-torch.cdist(points, means).square() / 2).exp()


def from_proposals(p: Proposals, v: Tensor, alpha: Tensor) -> Tensor:
    """The outputs of linear randomized attention in evaluation, where w_c = mu_c, under these alpha."""
    scores = p.means @ p.y.mT - p.y.square().sum(-1) / 2
    logits = alpha.log() + p.x @ p.means.mT + scores.logsumexp(-1) - p.means.square().sum(-1) / 2
    return logits.softmax(-1) @ (scores.softmax(-1) @ v[0, 0])


@erratum(
    "Proposals under two names",
    "alpha_nc = q_c(w_c) / sum_c' g_c'(w_c), and weights p~_n(w_c) / q_c(w_c), where w_c is drawn from g_c",
    "g_c for every q_c: the balance heuristic g_c(w_c) / sum_c' g_c'(w_c), and p~_n(w_c) / g_c(w_c)",
)
def two_names() -> list[Row]:
    """The one density that a q_c could be is that around the landmark of the queries. With it the shares of the
    proposals at a point do not sum to one, which is what makes multiple importance sampling unbiased.
    """
    count = 4
    q, k, v = draw(3, 1, 1, 32, 8)
    mechanism = regard.build("lara", Heads(count=1, key_dim=8), num_landmarks=count, alpha="balance").double().eval()
    p = proposals(mechanism, q, k, count)
    points = p.means.repeat(250, 1) + draw(1000, 8, seed=1)
    whole = densities(points, p.means).sum(-1)
    off = [(densities(points, near).sum(-1) / whole - 1).abs().mean().item() for near in (p.landmarks, p.means)]
    with torch.no_grad():
        ours = mechanism(q, k, v).values[0, 0]
    balance = densities(p.means, p.means)
    found = from_proposals(p, v, balance.diagonal() / balance.sum(-1))
    return [
        Row("mean |sum_c alpha_c(w) - 1| at 1,000 points that were drawn from the proposals", *off),
        Row("largest difference of the output from `lara(alpha=balance)`", "", (found - ours).abs().max().item()),
    ]


@erratum(
    "Ratings that sum over landmarks",
    "alpha_nc = ... + r'_nc - mean_c r'_nc with r'_nc = exp(q_n . q~_c) / sum_c' exp(q_n . q~_c')",
    "... + a (r'_nc - mean_c r'_nc), at least 1e-8, with r'_nc = exp(q_n . q~_c) / sum_n' exp(q_n' . q~_c)",
)
def ratings() -> list[Row]:
    """The denominator is over queries. Over landmarks r' is about 1 / C instead of 1 / N, so that the correction is as
    large as what it corrects. Where proposals overlap it takes an alpha below 0, whose logarithm is no number: the
    clamp, which the article leaves out as it does a, is not a detail.
    """
    count = 16
    q, k, v = draw(3, 1, 1, 64, 8)
    mechanism = regard.build("lara", Heads(count=1, key_dim=8), num_landmarks=count, coefficient=2.0).double().eval()
    with torch.no_grad():
        for name in ("query_gain", "key_gain"):
            mechanism.get_parameter(name).mul_(0.5)  # nearer to one another
        ours = mechanism(q, k, v).values[0, 0]
    p = proposals(mechanism, q, k, count)
    at_means, at_draws = (densities(x, p.means) for x in (p.means, p.means + draw(count, 8, seed=1)))
    sums, sizes, below, off = [], [], [], []
    for axis in (1, 0):
        r = (p.x @ p.landmarks.mT).softmax(axis)
        correction = 2 * (r - r.mean(-1, keepdim=True))
        at_mean, at_draw = (x.diagonal() / x.sum(-1) + correction for x in (at_means, at_draws))
        sums.append((r.sum(0) - 1).abs().max().item())
        sizes.append(correction.abs().mean().item())
        below.append((at_draw < 0).double().mean().item())
        off.append((from_proposals(p, v, at_mean.clamp_min(1e-8)) - ours).abs().max().item())
    return [
        Row("largest |sum_n r'_nc - 1|", *sums),
        Row("mean size of the correction, a = 2", *sizes),
        Row("share of alphas below 0 at drawn w_c, before the clamp", *below),
        Row("largest difference of the output from `lara(coefficient=2.0)`", *off),
    ]


@erratum(
    "The cost of linear randomized attention",
    "O(N C d^2)",
    "O((N + M) C (d + dv) + C^2 d): twice the width costs twice, not four times",
)
def cost_of_proposals() -> list[Row]:
    """Operations of the products, counted, for 2,048 queries and keys, 16 landmarks and width 32, and what doubling
    one of these makes of them.
    """
    start = {"length": 2048, "count": 16, "dim": 32}

    def written(length: int, count: int, dim: int) -> int:
        return length * count * dim**2

    def counted(length: int, count: int, dim: int) -> int:
        x = torch.zeros(1, 1, length, dim)
        mechanism = regard.build("lara", Heads(count=1, key_dim=dim), num_landmarks=count).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            mechanism(x, x, x)
        return counter.get_total_flops()

    return [
        Row(f"operations at twice the {what}, over those before", *(
            cost(**{**start, name: 2 * start[name]}) / cost(**start) for cost in (written, counted)
        ))
        for what, name in (("width", "dim"), ("landmarks", "count"), ("length", "length"))
    ]  # fmt: skip
