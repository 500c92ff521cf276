"""Performer attention with the stabiliser of its published code, which leaks the future in causal use."""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge
from torch import Tensor

from regard.attention.kernel import RandomKernel, ratio
from regard.core.attention import Attended, Call, accumulation_dtype
from regard.core.info import Info, Supports
from regard.engines.sums.engine import kernel_average
from regard.engines.sums.passes import LOWEST

EPSILON = 1e-4
"""added to every feature"""


@final
class PerformerPublished(RandomKernel):
    """out_i = sum_j phi(q_i) . phi(k_j) v_j / sum_j phi(q_i) . phi(k_j), phi(x) = exp(W x' - |x'|^2 / 2 - max) + 1e-4.

    x' = x dim^(-1/4), rows of W ~ N(0, I). The maxima are those of W x', before |x'|^2 / 2 is subtracted (with an
    epsilon that changes the result): for a query over its own features, for keys over those of all keys, later ones
    included. So in causal use a later key changes earlier outputs, and there is no state; and the epsilon biases the
    estimate of softmax. `performer` is the strictly causal mechanism.

    Cost: O(length x num_features x (dim + value)) time; the features of all queries and keys are stored.

    Example:
        >>> from regard import Heads
        >>> x = torch.linspace(-2, 2, 32).reshape(1, 1, 4, 8)
        >>> attention = PerformerPublished(Heads(count=1, key_dim=8, causal=True))
        >>> later = torch.cat([x[:, :, :3], 4 * x[:, :, 3:]], 2)  # another last key
        >>> bool((attention(x, later, x).values - attention(x, x, x).values)[:, :, :3].abs().max() > 1e-3)
        True

    Source: Choromanski et al. 2021, Eqs. 5-7, Lemma 1, and its published code; redrawing: its section 4.2.
    """

    default_info = Info(
        title="Performer (FAVOR+) as published",
        source="Choromanski et al. 2021, Rethinking Attention with Performers, arXiv:2009.14794, Eqs. 5-7 and code",
        supports=Supports.all(but=("bias", "marks", "dropout", "state")),
        time=1,
        memory=1,
        state="none",
        sees_content_only=True,
        stochastic=True,
        leaks=True,
    )
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "its weights are products of features, so no term can be added to a logit",
        "state": "it divides by the largest key of the whole call",
    }
    maps: ClassVar[Mapping[str, str]] = {"positive": "positive_random"}

    num_features: Annotated[int, Ge(1)] | None = None
    """features per key; None: dim log(dim), at least dim, rounded up to an even number"""
    feature_map: Literal["positive"] = "positive"
    """the only one"""
    norms: Literal["chi", "sqrt"] = "chi"
    """of the rows: as they are drawn, or all sqrt(dim)"""
    impl: Literal["auto", "reference", "torch"] = "auto"
    """`auto` and `torch` are the chunked operator, `reference` the definition (no schedule: only `redraw` draws)"""

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

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """By sums, on features stabilised by the largest key of the call."""
        dtype, mask = accumulation_dtype(q.dtype), call.key_mask
        with torch.autocast(q.device.type, enabled=False):
            grouped, keys = (x.to(dtype) * self.scale for x in (q.unflatten(1, (k.shape[1], -1)), k))
            w = self.projection_now().to(dtype)
            of_q, of_k = grouped @ w[:, None].mT, keys @ w.mT
            half_q, half_k = (x.square().sum(-1, keepdim=True) / 2 for x in (grouped, keys))
            if mask is not None:
                of_k = of_k.masked_fill(~mask[:, None, :, None], float("-inf"))
            largest = of_k.flatten(2).amax(-1) if k.shape[2] else of_k.new_zeros(k.shape[:2])
            fq = (of_q - half_q - of_q.amax(-1, keepdim=True)).exp().flatten(1, 2) + EPSILON
            fk = (of_k - half_k - largest.clamp_min(LOWEST)[..., None, None]).exp() + EPSILON
        # constant factors of the features cancel, and are left out
        result = kernel_average(
            fq, fk, v.to(dtype), query_map="identity", key_map="identity", causal=self.heads.causal, key_mask=mask
        )
        return Attended(result.values)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Every weight (queries x keys numbers), divided by its row's sum."""
        seen = call.visible(q, k)
        k, v, w = (x.repeat_interleave(self.heads.group, -3) for x in (k, v, self.projection.to(q.dtype)))
        q, k = q / q.shape[-1] ** 0.25, k / k.shape[-1] ** 0.25
        of_q, of_k = (torch.einsum("bhnd,hrd->bhnr", x, w) for x in (q, k))
        if call.key_mask is not None:
            of_k = of_k.masked_fill(~call.key_mask[:, None, :, None], float("-inf"))
        norm_q, norm_k = ((x * x).sum(-1, keepdim=True) / 2 for x in (q, k))
        largest = of_k.amax((-2, -1), keepdim=True).clamp_min(LOWEST)
        fq = torch.exp(of_q - norm_q - of_q.amax(-1, keepdim=True)) + EPSILON
        fk = torch.exp(of_k - norm_k - largest) + EPSILON
        weights = (fq @ fk.mT).masked_fill(~seen, 0)
        return ratio(weights @ v, weights.sum(-1, keepdim=True))
