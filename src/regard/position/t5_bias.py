"""Learned biases by bucket of distance, of T5."""

from bisect import bisect_left
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.core.attention import generator
from regard.core.bias import ScoreBias
from regard.core.errors import ConfigError
from regard.core.info import Heads
from regard.position._base import Position

_MOST_BUCKETS, _FURTHEST = 1024, (1 << 31) - 1
"""Edges are whole numbers to the power of the buckets; beyond these they would take minutes."""


@final
class T5Bias(Position):
    """Adds B[h, bucket(j - i)] to the logit of query slot i and key slot j, with a learned table B.

    With n buckets for one direction, half of them (e = n // 2) hold one distance each; bucket e + k begins at distance
    e (max_distance / e)^(k / (n - e)), and the last one has no end. Causal heads spend all buckets on the past; others
    half on the past and the present, half on the future. T5 itself has no 1/sqrt(key_dim): `softmax(scale=1.0)`.

    Give the same module to every layer to share the table, as T5 does.

    Args:
        heads, dim: as `Position`; `heads.causal` decides the direction.
        num_buckets: of both directions together.
        max_distance: from here on all distances share the last bucket.
        std: standard deviation of the initial table.

    Raises:
        ConfigError: too few buckets or more than 1024, an odd number where two directions share them, or a
            `max_distance` that the buckets of one distance reach, or of 2^31 and more.

    Example:
        >>> scheme = T5Bias(Heads(count=2, key_dim=8, causal=True), 16)
        >>> scheme.bucket(torch.tensor([0, -11, -16, -128])).tolist()
        [0, 11, 16, 31]

    Source: Raffel et al. 2020, section 2.1; buckets as in its published code.
    """

    title = "T5 bias"
    biased = True

    def __init__(
        self, heads: Heads, dim: int, *, num_buckets: int = 32, max_distance: int = 128, std: float = 0.02
    ) -> None:
        super().__init__(heads, dim)
        self.num_buckets, self.max_distance = num_buckets, max_distance
        if num_buckets > _MOST_BUCKETS or max_distance > _FURTHEST:
            raise ConfigError(
                f"position t5_bias has at most {_MOST_BUCKETS} buckets and a max_distance of {_FURTHEST}; got "
                f"{num_buckets=}, {max_distance=}"
            )
        self.share = num_buckets if heads.causal else num_buckets // 2
        if self.share < 2 or (num_buckets % 2 and not heads.causal) or max_distance <= self.share // 2:
            raise ConfigError(
                "position t5_bias needs num_buckets >= 2 where causal, else >= 4 and even, and a max_distance above "
                f"{self.share // 2}; got {num_buckets=}, {max_distance=}, causal={heads.causal}"
            )
        self.edges = edges(self.share, max_distance)
        table = torch.randn(heads.count, num_buckets, generator=generator(heads.seed, "t5_bias position"))
        self.table = nn.Parameter(table * std)

    def bucket(self, relative: Int[Tensor, "*any"]) -> Int[Tensor, "*any"]:
        """The bucket of each j - i."""
        past = relative.abs() if not self.heads.causal else (-relative).clamp(min=0)
        bucket = torch.bucketize(past, torch.tensor(self.edges, device=relative.device), right=True)
        return bucket if self.heads.causal else bucket + self.share * (relative > 0)

    def bias(self, q: Tensor, low: int, high: int) -> ScoreBias:
        """The table's columns, one per distance."""
        relative = torch.arange(-high, 1 - low, device=q.device)
        return ScoreBias(high=high, curve=self.table[:, self.bucket(relative)].to(q.dtype))


def edges(count: int, max_distance: int) -> list[int]:
    """The distances at which bucket 1, 2, ..., count - 1 of one direction begins, in whole numbers.

    Logarithms round, and a distance such as 64 lies exactly on an edge; so edge e + k is the least r with
    r^(n-e) >= e^(n-e-k) max_distance^k.

    Example:
        >>> edges(16, 128)
        [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
    """
    exact = count // 2
    steps = count - exact
    starts, r = list(range(1, exact + 1)), exact
    for k in range(1, steps):
        least = exact ** (steps - k) * max_distance**k
        r += bisect_left(range(r, max_distance), least, key=lambda r: r**steps)
        starts.append(r)
    return starts
