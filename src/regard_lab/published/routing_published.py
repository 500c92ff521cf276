"""Attention within clusters of equal size, as Routing Transformer publishes it; it leaks the future."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, final

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Int
from torch import Tensor

from regard.attention.dense import reference_softmax
from regard.attention.routed import Bucketed
from regard.attention.routed.routing import Routing, normalised, standard
from regard.core.attention import Attended, Call
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.core.randomness import decided
from regard.engines.routed import exact


@final
class RoutingPublished(Bucketed):
    """The mean over the centroids that took a query of softmax_j(q^_i . k^_j / sqrt(d)) v_j over the keys they took.

    Vectors, centroids and loss are those of `routing`, but of n real tokens each of c centroids takes the n / c queries
    and the n / c keys x^ of largest x^ . mu_c, rounded up; a query that none took gets 0. A later token may take an
    earlier one's place, so it leaks.

    Cost: O(n c (d + log n) + n^2 d / c) time and O(n c d) memory, always.

    Source: Roy, Saffar, Vaswani, Grangier 2021 (Routing Transformer), section 4.
    """

    default_info = Info(
        title="Routing to clusters of equal size",
        source="Roy, Saffar, Vaswani, Grangier 2021, Routing Transformer, section 4",
        supports=Supports(causal=True, bidirectional=True, key_mask=True),
        rows_sum_to_one=False,
        sees_content_only=True,
        shares_query_key=True,
        selects=True,
        losses={"commitment": 1e-4},
        leaks=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = ({"num_clusters": 3}, {"num_clusters": 2, "share": False})
    row_sums = ("seen",)
    reasons: ClassVar[Mapping[str, str]] = {
        **Routing.reasons,
        **dict.fromkeys(("cross", "prefix", "state"), "which tokens a centroid takes depends on the whole sequence"),
    }

    num_clusters: Annotated[int, Ge(1)] | None = None
    """c; None: the square root of `max_length`, rounded"""
    decay: Annotated[float, Ge(0), Le(1)] = 0.999
    """of the moving averages"""
    routing: Routing = weight()
    """its centroids, which learn"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """share=False projects queries and keys apart."""
        return replace(cls.default_info, shares_query_key=options["share"])

    def setup(self) -> None:
        self.routing = Routing(self.heads, **self.options)

    @property
    def seen(self) -> Tensor:
        """Sums and counts of the last training call, see `Routing`."""
        return self.routing.seen

    def check_length(self, length: int) -> None:
        """Refuse what is longer than the `max_length` that fixed the clusters."""
        self.routing.check_length(length)

    def decisions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The place of every vector in the order in which each centroid takes them."""
        return self.ranks(normalised(q)), self.ranks(normalised(k))

    def ranks(self, x: Tensor) -> Int[Tensor, "batch heads clusters length"]:
        """The same for normalised vectors: the largest x . mu in float32 first, of equal ones the earlier."""
        with torch.no_grad(), exact(x):
            points = self.routing.centroids.float().repeat_interleave(x.shape[1] // self.heads.kv_heads, 0)
            return (points @ x.float().mT).argsort(dim=-1, descending=True, stable=True).argsort(-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Normalise, choose, attend within one cluster after the other; in training also measure and learn."""
        query, key, _, losses = self.routing.observe(q, k, call)
        places = decided(lambda: (self.ranks(query), self.ranks(key)))
        ours, theirs = (self.taken(x, call.key_mask)[..., None] for x in places)
        query, key, values = query.to(q.dtype), key.to(k.dtype), v.new_zeros(())
        for c in range(self.routing.clusters):
            codes = (~ours[:, :, c]).long(), 2 * (~theirs[:, :, c]).long()  # 1 and 2 meet nothing
            found = self.average(query, key, v, codes, call, 3, k.shape[2] // self.routing.clusters)
            values = values + found.masked_fill(~ours[:, :, c], 0)
        return Attended(values / ours.sum(2).clamp(min=1), call.state, losses)

    def taken(self, ranks: Tensor, mask: Tensor | None) -> Bool[Tensor, "batch heads clusters length"]:
        """True where a centroid takes a token."""
        clusters, length = ranks.shape[2:]
        if mask is None:
            return ranks < -(-length // clusters)
        real, share = mask[:, None, None], (mask.sum(1) + clusters - 1) // clusters
        return real & (ranks.masked_fill(~real, length).argsort(-1).argsort(-1) < share[:, None, None, None])

    def choices(self, q: Tensor, k: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        """The place of every vector: how many have a larger x . mu_c, or come before it with the same."""
        i, chosen = torch.arange(k.shape[2], device=k.device), list[Tensor]()
        for x in (q, k):
            points = self.routing.centroids.float().repeat_interleave(x.shape[1] // self.heads.kv_heads, 0)
            scores = torch.einsum("bhid,hcd->bhci", standard(x.detach()).float(), points)
            tied = (scores[..., None, :] == scores[..., None]) & (i < i[:, None])
            chosen.append(((scores[..., None, :] > scores[..., None]) | tied).sum(-1))
        return chosen[0], chosen[1]

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call, decisions: Any = None) -> Tensor:
        """The softmax of every cluster, and their mean over those that took the query."""
        choices = self.choices(q, k, call) if decisions is None else decisions
        ours, theirs = (self.members(x, call.key_mask) for x in choices)
        clusters = zip(ours.unbind(2), theirs.unbind(2), strict=True)
        sums = torch.stack([reference_softmax(self.logits(q, k, each, call), v, call) for each in clusters]).sum(0)
        return sums / ours.sum(2).clamp(min=1)[..., None]

    def logits(self, q: Tensor, k: Tensor, choices: tuple[Tensor, Tensor], call: Call) -> Tensor:
        """Every pair of one cluster; the choices are whether it takes each query and key."""
        met = choices[0][..., None] & choices[1].repeat_interleave(self.heads.group, 1)[..., None, :]
        return self.counted_logits(standard(q), standard(k), self.without_itself(q, k, met.long(), call) * met)

    def members(self, ranks: Tensor, mask: Tensor | None) -> Bool[Tensor, "batch heads clusters length"]:
        """True where a centroid takes a token: fewer real ones than its share have a smaller rank."""
        real = torch.ones_like(ranks[:, 0, 0], dtype=torch.bool) if mask is None else mask
        ahead = (ranks[..., None, :] < ranks[..., None]) & real[:, None, None, None]
        share = (real.sum(1) + self.routing.clusters - 1) // self.routing.clusters
        return (ahead.sum(-1) < share[:, None, None, None]) & real[:, None, None]
