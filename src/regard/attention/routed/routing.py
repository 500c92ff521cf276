"""Attention within clusters of content (Routing Transformer)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, final

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.dense import reference_softmax
from regard.attention.routed import Bucketed, nearest
from regard.core import Attended, Call, accumulation_dtype, generator, recomputing
from regard.engines.dense import expand_heads
from regard.engines.routed.clusters import clustered, ranked
from regard.engines.routed.codes import gather_codes
from regard.errors import ConfigError
from regard.features.norms import balanced, short
from regard.info import Info, Supports
from regard.options import weight
from regard.randomness import decided
from regard.state import Entry, per_slot

EPSILON = 1e-5
"""added to the variance of a query or key"""


class Clusters(NamedTuple):
    """The choices of a call.

    form="exact": the cluster of every vector, (batch, heads, length). form="paper": the places of the vectors in the
    order in which each centroid takes them, (batch, heads, clusters, length).
    """

    queries: Int[Tensor, "batch heads *clusters queries"]
    keys: Int[Tensor, "batch kv_heads *clusters keys"]


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
        {"num_clusters": 3, "form": "paper"},
        {"num_clusters": 2, "form": "paper", "share": False},
    )
    row_sums = ("seen",)
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "a query and a key may be any distance apart",
        "cross": "one projection serves as query and key; share=False permits it where form='exact'",
        "prefix": "which tokens a centroid of form='paper' takes depends on the whole sequence",
        "state": "which tokens a centroid of form='paper' takes depends on the whole sequence",
    }

    num_clusters: Annotated[int, Ge(1)] | None = None
    """c; None: the square root of `max_length`, rounded"""
    decay: Annotated[float, Ge(0), Le(1)] = 0.999
    """g, of the moving averages"""
    form: Literal["exact", "paper"] = "exact"
    """`exact` is strictly causal. `paper` gives each centroid the n / c tokens that are nearest to it, of n real ones,
    and averages the answers of the centroids that took a query, 0 where none did: balanced, O(n^2 d / c) time and
    O(n^2 / c) memory always, but a later token may take an earlier one's place, so it leaks."""
    impl: Literal["auto", "reference", "torch"] = "auto"
    """`torch` walks tiles of equal clusters; `auto` is `torch`; `reference` is the definition"""
    centroids: Tensor = weight()
    """mu: (kv_heads, clusters, dim), unit vectors"""
    carry: Tensor = weight()
    """what rounding took from the centroids, so that short steps add up in a narrow type too"""
    seen: Tensor = weight()
    """(2, kv_heads, clusters, dim + 1): sums and counts of the queries and keys of the last training call"""

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """share=False also serves cross-attention; form="paper" keeps no past, makes n^2 / c weights, and leaks."""
        info, paper = cls.default_info, options["form"] == "paper"
        if not options["share"]:
            supports = replace(info.supports, cross=not paper)
            info = replace(info, supports=supports, rows_sum_to_one=False, shares_query_key=False)
        if not paper:
            return info
        supports = replace(info.supports, state=False, prefix=False)
        return replace(info, supports=supports, state="none", memory=2, rows_sum_to_one=False, leaks=True)

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
        """The clusters of queries and keys, or the orders in which centroids take them."""
        key = normalised(k)
        return self._both(self.nearest if self.form == "exact" else self.ranks, key if q is k else normalised(q), key)

    @staticmethod
    def _both(choose: Callable[[Tensor], Tensor], query: Tensor, key: Tensor) -> Clusters:
        """The choices of normalised queries and keys; made once where one tensor is both."""
        keys = choose(key)
        return Clusters(keys if query is key else choose(query), keys)

    def nearest(self, x: Tensor) -> Tensor:
        """The cluster of each normalised vector."""
        points = self.centroids[:, None]
        return nearest(x, points, points.new_zeros(points.shape[:3]))[..., 0]

    def ranks(self, x: Tensor) -> Tensor:
        """The place of each normalised vector in the order of each centroid."""
        return ranked(x, self.centroids)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Normalise, choose, attend within clusters; in training also measure and learn."""
        learns, scale = self.training and not recomputing(), self.heads.key_dim**-0.5
        if learns:
            self.learn()
        key = normalised(k)
        query = key if q is k else normalised(q)
        queries, keys = decided(lambda: self._both(self.nearest, query, key))
        real = call.key_mask if call.causal or call.paired else None  # the queries are tokens of this call
        real = None if real is None else real[:, k.shape[2] - q.shape[2] :]
        sides = (query, queries, real), (key, keys, call.key_mask)
        losses = {"commitment": torch.stack([self.commitment(*x) for x in sides]).mean()} if self.training else {}
        if learns:
            self.note(*sides)
        q, k = query.to(q.dtype), key.to(k.dtype)
        if self.form == "paper":
            ours, theirs = decided(lambda: self._both(self.ranks, query, key))
            k, v, theirs = (expand_heads(x, self.heads.count) for x in (k, v, theirs))
            values = clustered(q, k, v, ours, theirs, call.key_mask, scale, causal=call.causal, share=self.share)
            return Attended(values, call.state, losses)
        slots, call = call.remember(k=k, v=v, clusters=keys)
        codes, crowd = (queries[..., None], slots["clusters"][..., None]), slots["k"].shape[2] // self.clusters
        return Attended(self.average(q, slots["k"], slots["v"], codes, call, self.clusters, crowd), call.state, losses)

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
        """argmax_c x . mu_c of every vector, or its place among all by x . mu_c."""
        chosen: list[Tensor] = []
        for x in (q, k):
            points = self.centroids.float().repeat_interleave(x.shape[1] // self.heads.kv_heads, 0)
            scores = torch.einsum("bhid,hcd->bhci", standard(x.detach()).float(), points)
            if self.form == "exact":
                chosen.append(scores.argmax(2))
                continue
            i = torch.arange(x.shape[2], device=x.device)
            before = (scores[..., None, :] > scores[..., None]) | (
                (scores[..., None, :] == scores[..., None]) & (i < i[:, None])
            )
            chosen.append(before.sum(-1))
        return Clusters(*chosen)

    def logits(self, q: Tensor, k: Tensor, choices: Clusters, call: Call) -> Tensor:
        """Every pair of a cluster."""
        met = choices.queries[..., None] == choices.keys.repeat_interleave(self.heads.group, 1)[..., None, :]
        return self.counted_logits(standard(q), standard(k), self.without_itself(q, k, met.long(), call))

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call, decisions: Any = None) -> Tensor:
        """In form="paper" the softmax of every cluster, and their mean over those that took the query."""
        if self.form == "exact":
            return super().reference(q, k, v, call, decisions)
        choices = self.choices(q, k, call) if decisions is None else decisions
        ours, theirs = (self.members(x, call.key_mask) for x in choices)
        theirs = theirs.repeat_interleave(self.heads.group, 1)
        q, k, sums = standard(q), standard(k), torch.zeros((), dtype=v.dtype, device=v.device)
        for c in range(self.clusters):
            met = ours[:, :, c, :, None] & theirs[:, :, c, None, :]
            times = self.without_itself(q, k, met.long(), call) * met
            sums = sums + reference_softmax(self.counted_logits(q, k, times), v, call)
        return sums / ours.sum(2).clamp(min=1)[..., None]

    def members(self, ranks: Tensor, mask: Tensor | None) -> Tensor:
        """(batch, heads, clusters, length): whether each centroid takes each token, of real ones their share."""
        real = torch.ones_like(ranks[:, 0, 0], dtype=torch.bool) if mask is None else mask
        ahead = (ranks[..., None, :] < ranks[..., None]) & real[:, None, None, None]
        share = (real.sum(1) + self.clusters - 1) // self.clusters
        return (ahead.sum(-1) < share[:, None, None, None]) & real[:, None, None]


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
