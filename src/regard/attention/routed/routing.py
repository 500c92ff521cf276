"""Attention within clusters of content (Routing Transformer)."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple, final

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.routed import Bucketed, nearest
from regard.core.attention import Attended, Call, accumulation_dtype, generator, recomputing
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.core.randomness import decided
from regard.core.state import Entry, per_slot
from regard.engines.routed.codes import gather_codes
from regard.features.norms import balanced, short

EPSILON = 1e-5
"""added to the variance of a query or key"""


class Clusters(NamedTuple):
    """The choices of a call: the cluster of every vector."""

    queries: Int[Tensor, "batch heads queries"]
    keys: Int[Tensor, "batch kv_heads keys"]


@final
class Routing(Bucketed):
    """Softmax over the keys of the query's cluster: the clusters of online k-means over normalised queries and keys.

    o_i = sum_j softmax_j(q^_i . k^_j / sqrt(d)) v_j over P_i = {j: c(q^_i) = c(k^_j), j <= i if causal},
    c(x) = argmax_c x . mu_c, where x^ is x less its mean over its standard deviation (a layer norm without weights, of
    norm sqrt(d)) and |mu_c| = 1, so that the nearest centroid by product is that by distance too.

    With `share` one projection serves as query and key, and j = i counts only where the cluster holds no other key.
    A token's cluster depends on that token alone, so nothing leaks. Centroids follow what they gather, in training
    only: mu_c <- the unit vector of mu_c + (1 - g) / 2 (mean of its queries - mu_c) + (1 - g) / 2 (mean of its keys -
    mu_c), in units of the sphere, after the call that saw them; a cluster that gathered nothing keeps its place. A
    checkpointed block that runs again does not learn again. The loss `commitment` is the mean over tokens of
    sum_heads |x^ - sqrt(d) sg(mu_c)|^2, half over queries and half over keys.

    Cost: O(n c d + n^2 d / c) time where tokens spread evenly over c clusters, O(n^1.5 d) with c = sqrt(n); O(n^2 d) if
    all fall into one. State: normalised key, value and cluster of every slot. Lost: keys of other clusters.

    Raises:
        ConfigError: neither `num_clusters` nor `Heads.max_length`.
        LimitError: longer than the `Heads.max_length` that fixed the clusters.

    Example:
        >>> from regard import Heads, weights
        >>> x = torch.randn(8)
        >>> q = torch.stack([x, 2 * x, -x]).reshape(1, 1, 3, 8)
        >>> mechanism = Routing(Heads(count=1, key_dim=8), num_clusters=16)
        >>> (weights(mechanism, q, q)[0, 0] > 0).int().tolist()  # alone in its cluster, a token sees itself
        [[0, 1, 0], [1, 0, 0], [0, 0, 1]]

    Source: Roy, Saffar, Vaswani, Grangier 2021 (Routing Transformer), section 4; the means of clusters instead of their
    sums, which would move a centroid by how many tokens it has.
    """

    default_info = Info(
        title="Routing by content",
        source="Roy, Saffar, Vaswani, Grangier 2021, Routing Transformer, section 4",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, state=True, prefix=True),
        time=2,
        state="length",
        sees_content_only=True,
        shares_query_key=True,
        selects=True,
        losses={"commitment": 1e-4},
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"num_clusters": 3},
        {"num_clusters": 4, "share": False, "decay": 0.5},
    )
    row_sums = ("seen",)
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "a query and a key may be any distance apart",
        "cross": "one projection serves as query and key; share=False permits it",
    }

    num_clusters: Annotated[int, Ge(1)] | None = None
    """c; None: the square root of `max_length`, rounded"""
    decay: Annotated[float, Ge(0), Le(1)] = 0.999
    """g, of the moving averages"""
    centroids: Tensor = weight()
    """mu: (kv_heads, clusters, dim), unit vectors"""
    carry: Tensor = weight()
    """what rounding took from the centroids, so that short steps add up in a narrow type too"""
    seen: Tensor = weight()
    """(2, kv_heads, clusters, dim + 1): sums and counts of the queries and keys of the last training call"""

    def check_options(self) -> None:
        if self.num_clusters is None and self.heads.max_length is None:
            raise ConfigError("routing fixes its clusters at build: give num_clusters, or Heads.max_length")

    def setup(self) -> None:
        shape = (self.heads.kv_heads, self.clusters, self.heads.key_dim)
        points = torch.randn(shape, generator=generator(self.heads.seed, "routing", "centroids"))
        self.register_buffer("centroids", F.normalize(normalised(points), dim=-1))
        self.register_buffer("carry", torch.zeros(shape))
        self.register_buffer("seen", torch.zeros(2, *shape[:2], shape[2] + 1))

    @property
    def clusters(self) -> int:
        """c: `num_clusters`, or what `max_length` asks for."""
        if self.num_clusters is not None:
            return self.num_clusters
        assert self.heads.max_length is not None
        return max(1, round(self.heads.max_length**0.5))

    def check_length(self, length: int) -> None:
        """Refuse what is longer than the `max_length` that fixed the clusters."""
        if self.num_clusters is None:
            self.require_length(length)

    def decisions(self, q: Tensor, k: Tensor) -> Clusters:
        """The clusters of queries and keys."""
        key = normalised(k)
        return self._clusters(key if q is k else normalised(q), key)

    def _clusters(self, query: Tensor, key: Tensor) -> Clusters:
        """The clusters of normalised queries and keys; found once where one tensor is both."""
        keys = self.nearest(key)
        return Clusters(keys if query is key else self.nearest(query), keys)

    def nearest(self, x: Tensor) -> Tensor:
        """The cluster of each normalised vector."""
        points = self.centroids[:, None]
        return nearest(x, points, points.new_zeros(points.shape[:3]))[..., 0]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Normalise, choose, attend within clusters; in training also measure and learn."""
        query, key, chosen, losses = self.observe(q, k, call)
        slots, call = call.remember(k=key.to(k.dtype), v=v, clusters=chosen.keys)
        codes, crowd = (chosen.queries[..., None], slots["clusters"][..., None]), slots["k"].shape[2] // self.clusters
        values = self.average(query.to(q.dtype), slots["k"], slots["v"], codes, call, self.clusters, crowd)
        return Attended(values, call.state, losses)

    def observe(self, q: Tensor, k: Tensor, call: Call) -> tuple[Tensor, Tensor, Clusters, dict[str, Tensor]]:
        """Normalised queries and keys, their clusters, and in training the loss, where centroids also learn."""
        learns = self.training and not recomputing()
        if learns:
            self.learn()
        key = normalised(k)
        query = key if q is k else normalised(q)
        chosen = decided(lambda: self._clusters(query, key))
        real = call.key_mask if call.causal or call.paired else None  # the queries are tokens of this call
        real = None if real is None else real[:, k.shape[2] - q.shape[2] :]
        sides = (query, chosen.queries, real), (key, chosen.keys, call.key_mask)
        losses = {"commitment": torch.stack([self.commitment(*x) for x in sides]).mean()} if self.training else {}
        if learns:
            self.note(*sides)
        return query, key, chosen, losses

    def commitment(self, x: Tensor, clusters: Tensor, mask: Tensor | None) -> Tensor:
        """The mean over real tokens of sum_heads |x - sqrt(d) sg(mu)|^2."""
        head = torch.arange(x.shape[1], device=x.device)[:, None] // (x.shape[1] // len(self.centroids))
        error = (x - self.centroids[head, clusters.long()] * x.shape[3] ** 0.5).square().sum((1, 3))
        if mask is None:
            return error.mean() if error.numel() else error.sum()
        return torch.where(mask, error, 0.0).sum() / mask.sum().clamp(min=1)

    @torch.no_grad()
    def learn(self) -> None:
        """One step of the moving averages, towards what the last call saw."""
        dtype = accumulation_dtype(self.centroids.dtype)
        sums, counts = self.seen.to(dtype).split([self.heads.key_dim, 1], -1)
        means, now = sums / counts.clamp(min=1) / self.heads.key_dim**0.5, (self.centroids + self.carry.to(dtype))
        step = (1 - self.decay) / 2 * (counts > 0)
        moved = torch.where(step.sum(0) > 0, F.normalize(now + (step * (means - now)).sum(0), dim=-1), now)
        self.centroids.copy_(moved)
        self.carry.copy_(moved - self.centroids)

    @torch.no_grad()
    def note(self, *sides: tuple[Tensor, Tensor, Tensor | None]) -> None:
        """Note the sums and counts of the queries and keys of this call; what is hidden or NaN is left out."""
        for into, (x, clusters, mask) in zip(self.seen, sides, strict=True):
            sums = F.pad(torch.zeros_like(into), (0, 0, 0, 1))  # the last row takes what is hidden
            if mask is not None:
                clusters = clusters.masked_fill(~mask[:, None], self.clusters)
            clusters = clusters.masked_fill(x.isnan().any(-1), self.clusters)
            x = x.detach().masked_fill(clusters[..., None] == self.clusters, 0)
            rows, of = (y.unflatten(1, (len(into), -1)).transpose(0, 1).flatten(1, 3) for y in (x, clusters))
            gather_codes(sums, of.long(), rows.to(sums.dtype))
            into.copy_(sums[:, :-1])

    def state_layout(self) -> Mapping[str, Entry]:
        """Normalised key, value and cluster."""
        return {**super().state_layout(), "clusters": per_slot(self.heads.kv_heads, dtype=torch.int32)}

    def choices(self, q: Tensor, k: Tensor, call: Call) -> Clusters:
        """argmax_c x . mu_c of every vector."""
        chosen: list[Tensor] = []
        for x in (q, k):
            points = self.centroids.float().repeat_interleave(x.shape[1] // self.heads.kv_heads, 0)
            scores = torch.einsum("bhid,hcd->bhci", standard(x.detach()).float(), points)
            chosen.append(scores.argmax(2))
        return Clusters(*chosen)

    def logits(self, q: Tensor, k: Tensor, choices: Clusters, call: Call) -> Tensor:
        """Every pair of a cluster."""
        met = choices.queries[..., None] == choices.keys.repeat_interleave(self.heads.group, 1)[..., None, :]
        return self.counted_logits(standard(q), standard(k), self.without_itself(q, k, met.long(), call))


def normalised(x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """x less its mean over its standard deviation, in float32 at least."""
    x, least = x.to(accumulation_dtype(x.dtype)), EPSILON
    apart = x - x.mean(-1, keepdim=True)
    square = apart.square().mean(-1, keepdim=True)
    if not short(square):
        x, factor = balanced(x)
        apart = x - x.mean(-1, keepdim=True)
        square, least = apart.square().mean(-1, keepdim=True), EPSILON * factor.square()
    return apart * torch.rsqrt(square + least)


def standard(x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """The same by definition, in the dtype of x."""
    largest = x.detach().abs().amax(-1, keepdim=True).clamp(min=1)  # whose square may be infinite
    part = x / largest
    part = part - part.mean(-1, keepdim=True)
    return part / (part.pow(2).mean(-1, keepdim=True) + EPSILON / largest**2).sqrt()
