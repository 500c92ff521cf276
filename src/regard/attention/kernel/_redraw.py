"""Random features: projections drawn again on a schedule while training, and not twice when a block is recomputed."""

import torch
from torch import Tensor

from regard.attention.kernel._base import Kernel
from regard.core import generator, recomputing
from regard.errors import ConfigError
from regard.features import FeatureMap, draw_projection


class RandomKernel(Kernel):
    """Template: one random map for queries and keys. A subclass sets these options, and then calls `take`."""

    feature_map: str
    orthogonal: bool
    redraw_interval: int | None
    norms: str = "chi"
    pool_size: int | None = None
    projection: Tensor
    calls: Tensor

    def take(self, feature_map: FeatureMap, num_features: int) -> None:
        """Store the map and draw its first projection.

        Raises:
            ConfigError: a number of features that the map does not make, a redraw_interval below 1.
        """
        dim, rows = self.heads.key_dim, feature_map.rows(num_features)
        if self.redraw_interval is not None and self.redraw_interval < 1:
            raise ConfigError(f"{self._name}: redraw_interval must be at least 1, or None, got {self.redraw_interval}")
        if rows < 1 or feature_map.count(dim, rows) != num_features:
            raise ConfigError(
                f"{self._name}(feature_map={self.feature_map!r}): num_features must be at least "
                f"{feature_map.count(dim, 1)} and a multiple of it, got {num_features}"
            )
        self.query_map = self.key_map = feature_map
        self.features = self.num_features = num_features
        self.register_buffer("projection", self._drawn(self.heads.seed, rows))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def _drawn(self, seed: int, rows: int) -> Tensor:
        heads = self.heads
        return draw(seed, 0, heads.kv_heads, rows, heads.key_dim, self.orthogonal, self.norms, self.pool_size)

    def projection_now(self) -> Tensor:
        if not self.training or self.redraw_interval is None:
            return self.projection
        return scheduled_projection(
            self.projection,
            self.calls,
            self.redraw_interval,
            self.heads.seed,
            self.orthogonal,
            self.norms,
            self.pool_size,
        )

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the projection again, now."""
        seed = int(torch.randint(2**63 - 1, (), generator=generator))
        self.projection = self._drawn(seed, self.projection.shape[1]).to(self.projection)


def draw(
    seed: int, number: int, heads: int, rows: int, dim: int, orthogonal: bool, norms: str, pool: int | None = None
) -> Tensor:
    """The draw of that number, (heads, rows, dim): each head has directions of its own.

    `pool`: each head takes one of so many matrices of its own, again and again.
    """

    def one(head: int) -> Tensor:
        chosen = number
        if pool is not None:
            chosen = int(torch.randint(pool, (), generator=generator(seed, "pool", head, number)))
        drawn = generator(seed, "projection", head, chosen)
        return draw_projection(rows, dim, drawn, orthogonal=orthogonal, norms=norms)

    return torch.stack([one(head) for head in range(heads)])


@torch.library.custom_op("regard::scheduled_projection", mutates_args=("projection", "calls"))
def scheduled_projection(
    projection: Tensor, calls: Tensor, interval: int, seed: int, orthogonal: bool, norms: str, pool: int | None
) -> Tensor:
    """Count a training call, draw again at every `interval`-th, and return a copy.

    A copy, because the backward pass of an earlier call still needs the projection that it saw. An operator, because
    the counter decides on the host, which no compiled graph can.
    """
    if not recomputing():
        calls += 1
        if int(calls) % interval == 0:
            heads, rows, dim = projection.shape
            projection.copy_(draw(seed, int(calls) // interval, heads, rows, dim, orthogonal, norms, pool))
    return projection.clone()


@scheduled_projection.register_fake
def _(
    projection: Tensor, calls: Tensor, interval: int, seed: int, orthogonal: bool, norms: str, pool: int | None
) -> Tensor:
    return torch.empty_like(projection)
