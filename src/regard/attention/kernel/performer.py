"""Performer attention: softmax estimated with random features (FAVOR+)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor

from regard.attention.kernel import RandomKernel, ratio
from regard.core.attention import Call
from regard.core.info import Info, Supports
from regard.engines.sums.passes import LOWEST


@final
class Performer(RandomKernel):
    """Softmax of scaled dot products, estimated: out_i = sum_j phi(q_i) . phi(k_j) v_j / sum_j phi(q_i) . phi(k_j).

    phi(x) = r^(-1/2) exp(W x' - |x'|^2 / 2), x' = x dim^(-1/4), rows of W ~ N(0, I): E[phi(q) . phi(k)] is
    exp(q . k / sqrt(dim)) (the paper's SM, Eq. 5, and Lemma 1). Our num_features is the paper's m (2 m for maps that
    make two features of a row of W).

    Cost: O(length x num_features x (dim + value)) time, a state of num_features x (value + 1) + 1 numbers per head.
    Lost: the estimate of a weight has relative variance (exp(|q' + k'|^2) - 1) / num_features, so sharp attention needs
    many features; the ratio is biased.

    Strictly causal: each key is scaled by its own largest feature, each query by the largest key so far. There is no
    epsilon. Features below 2e-18 of a vector's largest count as that much, so that every total is positive. The
    published stabiliser, which leaks the future, is `regard_lab.published.performer_published:PerformerPublished`.

    Raises:
        ConfigError: an odd num_features for a map with pairs of features.

    Example:
        >>> import torch
        >>> from regard import attend
        >>> x = torch.linspace(-2, 2, 32).reshape(1, 1, 4, 8)
        >>> estimates = (attend(x, x, x, f"performer(num_features={count})") for count in (8, 8192))
        >>> few, many = (float((estimate - attend(x, x, x)).abs().max()) for estimate in estimates)
        >>> many < few / 4
        True

    Source: Choromanski et al. 2021, Eqs. 5-7, Lemma 1, section 2.4; redrawing: its section 4.2.
    """

    default_info = Info(
        title="Performer (FAVOR+)",
        source="Choromanski et al. 2021, Rethinking Attention with Performers, arXiv:2009.14794, Eqs. 5-7, Lemma 1",
        supports=Supports.all(but=("bias", "marks", "dropout")),
        time=1,
        memory=1,
        state="constant",
        sees_content_only=True,
        stochastic=True,
        approximates="softmax",
        knob="num_features",
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {},
        {"num_features": 12, "feature_map": "relu", "norms": "sqrt"},
    )
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "its weights are products of features, so no term can be added to a logit",
    }
    maps: ClassVar[Mapping[str, str]] = {
        "positive": "positive_random",
        "hyperbolic": "hyperbolic_random",
        "trigonometric": "trigonometric",
        "relu": "relu_random",
    }

    num_features: Annotated[int, Ge(1)] | None = None
    """features per key; None: dim log(dim), at least dim, rounded up to an even number"""
    feature_map: Literal["positive", "hyperbolic", "trigonometric", "relu"] = "positive"
    """`hyperbolic` has less variance at equal num_features, `trigonometric` is unbiased too, but signed, `relu` is
    ReLU(W x') + 0.001: another kernel, no estimate"""
    norms: Literal["chi", "sqrt"] = "chi"
    """of the rows: `chi` unbiased; `sqrt` all sqrt(dim)"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """What is estimated and the sign of the weights, by the map and the norms."""
        map_ = options["feature_map"]
        # the trigonometric total may come near 0 or below: its variance falls, the error of the ratio has no bound
        estimates = map_ in ("positive", "hyperbolic") and options["norms"] == "chi"
        return replace(
            cls.default_info,
            nonnegative=map_ != "trigonometric",
            approximates="softmax" if estimates else None,
            knob="num_features" if estimates else None,
        )

    def setup(self) -> None:
        dim = self.heads.key_dim
        if self.num_features is None:
            self.num_features = 2 * math.ceil(max(dim, dim * math.log(dim)) / 2)
        super().setup()

    @property
    def scale(self) -> float:
        return self.heads.key_dim**-0.25

    @property
    def law(self) -> tuple[bool, str, int | None]:
        return self.orthogonal, self.norms, None

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every weight from every feature (queries x keys x features numbers), divided by its row's sum."""
        seen = call.visible(q, k)
        k, v, w = (x.repeat_interleave(self.heads.group, -3) for x in (k, v, self.projection.to(q.dtype)))
        q, k = q / q.shape[-1] ** 0.25, k / k.shape[-1] ** 0.25
        a, b = torch.einsum("bhid,hrd->bhir", q, w)[..., None, :], torch.einsum("bhjd,hrd->bhjr", k, w)[..., None, :, :]
        half = (k * k).sum(-1)[..., None, :] / 2
        if self.feature_map == "relu":
            weights = ((a.clamp_min(0) + 1e-3) * (b.clamp_min(0) + 1e-3)).sum(-1)
        elif self.feature_map == "trigonometric":
            largest = half.masked_fill(~seen, float("-inf")).amax(-1, keepdim=True).clamp_min(LOWEST)
            weights = torch.cos(a - b).sum(-1) * torch.exp((half - largest).clamp_max(0))
        else:
            logs = torch.cat([a + b, -a - b], -1) if self.feature_map == "hyperbolic" else a + b
            logs = (torch.logsumexp(logs, -1) - half).masked_fill(~seen, float("-inf"))
            weights = torch.exp(logs - logs.amax(-1, keepdim=True).clamp_min(LOWEST))
        weights = weights.masked_fill(~seen, 0)
        return ratio(weights @ v, weights.sum(-1, keepdim=True))
