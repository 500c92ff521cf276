"""Attention among tokens that a locality-sensitive hash puts into one bucket."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple, final

import torch
from annotated_types import Ge
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention.routed import Bucketed, nearest
from regard.core.attention import Attended, Call, accumulation_dtype, generator
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.core.randomness import decided
from regard.core.state import Entry, per_slot
from regard.engines.routed import near_one, vertices
from regard.features.norms import unit

TINY = 1e-12
"""least norm of a key: a key of zeros stays zero"""


class Buckets(NamedTuple):
    """The choices of a call: h_r(q_i) and h_r(k_j)."""

    queries: Int[Tensor, "batch heads queries rounds"]
    keys: Int[Tensor, "batch kv_heads keys rounds"]


@final
class Lsh(Bucketed):
    """Softmax over the keys that share a bucket with the query in at least one of several random hashes.

    o_i = sum_j softmax_j(q_i . k_j / sqrt(d)) v_j over j in the union over rounds r of P_i^r,
    P_i^r = {j: h_r(q_i) = h_r(k_j), j <= i if causal}, h_r(x) = argmax([x R_r; -x R_r]), R_r Gaussian (d, buckets / 2).

    With `share` one projection serves as query and key: k_j = q_j / |q_j|, j = i counts only where the union is empty
    without it (the paper subtracts 1e5 from that logit, which costs float32 its last digits), and a hidden position
    gives 0. The union is one softmax: the paper merges rounds and divides a key's weight by the number of rounds that
    it was met in, which is the same. A token's bucket depends on that token alone, in float32.

    Cost: O(rounds length (log length + (bucket + num_buckets) dim)) time, where a bucket holds length / num_buckets
    tokens if they spread evenly; O(rounds length^2 dim) if all fall into one bucket. O(length) memory. State: key,
    value and buckets of every slot. Lost: keys that no round puts beside the query.

    Raises:
        ConfigError: neither `num_buckets` nor `Heads.max_length`, an odd `num_buckets` above 1.
        LimitError: longer than the `Heads.max_length` that fixed the buckets.

    Example:
        >>> from regard import Heads, weights
        >>> x = torch.randn(8)
        >>> q = torch.stack([x, 2 * x, -x]).reshape(1, 1, 3, 8)
        >>> mechanism = Lsh(Heads(count=1, key_dim=8), num_buckets=16)
        >>> (weights(mechanism, q, q)[0, 0] > 0).int().tolist()  # one direction, one bucket; alone, a token sees itself
        [[0, 1, 0], [1, 0, 0], [0, 0, 1]]

    Source: Kitaev, Kaiser, Levskaya 2020 (Reformer), section 2; hash: Andoni et al. 2015.
    """

    default_info = Info(
        title="Locality-sensitive hashing",
        source="Kitaev, Kaiser, Levskaya 2020, Reformer, section 2",
        supports=Supports(causal=True, bidirectional=True, key_mask=True, state=True, prefix=True),
        time=2,
        state="length",
        sees_content_only=True,
        shares_query_key=True,
        selects=True,
        stochastic=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"rounds": 2, "bucket_size": 8},
        {"num_buckets": 10, "rounds": 2, "share": False, "duplicates": True},
    )
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "a query and a key may be any distance apart",
        "cross": "one projection serves as query and key; share=False permits it",
    }

    rounds: Annotated[int, Ge(1)] = 4
    """independent hashes (the paper trains with 4 and evaluates with 8)"""
    bucket_size: Annotated[int, Ge(1)] = 64
    """tokens per bucket at `max_length`"""
    num_buckets: Annotated[int, Ge(1)] | None = None
    """even, or 1 for a single bucket; None: max_length / bucket_size, rounded up to an even number"""
    duplicates: bool = False
    """a key met in several rounds counts once per round"""
    rotations: Tensor = weight()

    def check_options(self) -> None:
        if self.num_buckets is None and self.heads.max_length is None:
            raise ConfigError("lsh fixes its buckets at build: give num_buckets, or Heads.max_length")
        if self.num_buckets is not None and self.num_buckets > 1 and self.num_buckets % 2:
            raise ConfigError(
                f"lsh: num_buckets must be even (a direction and its opposite) or 1, got {self.num_buckets}"
            )

    def setup(self) -> None:
        self.register_buffer("rotations", self.drawn(generator(self.heads.seed, "lsh", "rotations")))

    def drawn(self, generator: torch.Generator) -> Tensor:
        """R of every head of keys and round."""
        return torch.randn(self.heads.kv_heads, self.rounds, self.heads.key_dim, self.buckets // 2, generator=generator)

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the rotations again."""
        self.rotations = self.drawn(generator).to(self.rotations)

    @property
    def buckets(self) -> int:
        """Buckets of a round: `num_buckets`, or what `max_length` asks for."""
        if self.num_buckets is not None:
            return self.num_buckets
        assert self.heads.max_length is not None
        return 2 * -(-self.heads.max_length // (2 * self.bucket_size))

    def decisions(self, q: Tensor, k: Tensor) -> Buckets:
        """The buckets of queries and keys."""
        keys = self.hash(k)
        return Buckets(keys if q is k else self.hash(q), keys)

    def hash(self, x: Float[Tensor, "batch heads length dim"]) -> Int[Tensor, "batch heads length rounds"]:
        """The bucket of each vector in each round. Heads that share keys share their hash."""
        points = vertices(self.rotations)
        return nearest(near_one(x), points, points.new_zeros(points.shape[:3]))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Hash, remember, walk the tiles of each bucket."""
        queries, keys = decided(lambda: self.decisions(q, k))
        slots, call = call.remember(k=direction(k) if self.share else k, v=v, buckets=keys)
        k, v, codes = slots["k"], slots["v"], (queries, slots["buckets"])
        crowd = k.shape[2] // self.buckets
        values = self.average(q, k, v, codes, call, self.buckets, crowd, duplicates=self.duplicates)
        return Attended(values, call.state)

    def check_length(self, length: int) -> None:
        """Refuse what is longer than the `max_length` that fixed the buckets."""
        if self.num_buckets is None:
            self.require_length(length)

    def state_layout(self) -> Mapping[str, Entry]:
        """Key, value and buckets."""
        buckets = per_slot(self.heads.kv_heads, self.rounds, dtype=torch.int32)
        return {**super().state_layout(), "buckets": buckets}

    def choices(self, q: Tensor, k: Tensor, call: Call) -> Buckets:
        """argmax([x R; -x R]) of every vector and round."""
        rotations = self.rotations.float()
        buckets: list[Tensor] = []
        for x, turn in ((q, rotations.repeat_interleave(self.heads.group, 0)), (k, rotations)):
            turned = torch.einsum("bhid,hrdc->bhirc", x.detach().float(), turn)
            both = torch.cat([turned, -turned], -1)
            buckets.append(both.argmax(-1) if self.buckets > 1 else both.new_zeros(both.shape[:4]))
        return Buckets(*buckets)

    def logits(self, q: Tensor, k: Tensor, choices: Buckets, call: Call) -> Tensor:
        """Every pair of every round."""
        if self.share:
            largest = k.detach().abs().amax(-1, keepdim=True).clamp_min(1)  # whose square may be infinite
            part = k / largest
            k = part / part.square().sum(-1, keepdim=True).sqrt().clamp_min(TINY / largest)
        ours, theirs = choices.queries, choices.keys.repeat_interleave(self.heads.group, 1)
        met = ours[..., :, None, :] == theirs[..., None, :, :]
        times = self.without_itself(q, k, met.sum(-1), call)
        return self.counted_logits(q, k, times if self.duplicates else times.clamp(max=1))


def direction(k: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """k / |k|, computed in float32 at least."""
    return unit(k.to(accumulation_dtype(k.dtype)), TINY).to(k.dtype)
