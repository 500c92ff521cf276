"""Random features: projections drawn again on a schedule while training, and not twice when a block is recomputed."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from regard.attention.kernel._base import Kernel
from regard.core.attention import generator, recomputing
from regard.core.errors import ConfigError
from regard.core.options import weight
from regard.engines.operator import without_gradient
from regard.features.maps import FEATURE_MAPS, FeatureMap
from regard.features.projections import draw_projection


class RandomKernel(Kernel):
    """Template: one random map for queries and keys.

    A mechanism lists the choices of `feature_map` in `maps`, says how rows are drawn in `law`, and has set
    `num_features` when it calls this `setup`.
    """

    maps: ClassVar[Mapping[str, str]]
    """choices of `feature_map`, and the random maps that they stand for"""
    draws: ClassVar[str] = "projection"

    num_features: Annotated[int, Ge(1)] | None = None
    """features per key"""
    orthogonal: bool = True
    """rows of W orthogonal in blocks of dim: less variance"""
    redraw_interval: Annotated[int, Ge(1)] | None = 1000
    """training calls between draws of W; None: never. A block that is recomputed (checkpointing) counts once;
    evaluation never counts"""
    projection: Tensor = weight()
    """(kv_heads, rows, dim)"""
    calls: Tensor = weight()
    """in training, so far"""

    @property
    def query_map(self) -> FeatureMap:
        return FEATURE_MAPS[self.maps[self.feature_map]]

    @property
    def features(self) -> int:
        return self.key_map.count(self.heads.key_dim, self.projection.shape[1])

    @property
    def law(self) -> tuple[bool, str, int | None]:
        """How rows are drawn: whether orthogonal, of which norms, and from a pool of how many draws (None: of all)."""
        return self.orthogonal, "chi", None

    def check_options(self) -> None:
        """Refuse a number of features that the map does not make."""
        fewest = self.key_map.per_row
        if self.num_features is not None and self.num_features % fewest:
            raise ConfigError(
                f"{self._name}(feature_map={self.feature_map!r}): num_features must be a multiple of {fewest}, "
                f"got {self.num_features}"
            )

    def setup(self) -> None:
        assert self.num_features is not None
        self.register_buffer("projection", self._drawn(self.heads.seed, self.num_features // self.key_map.per_row))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def _drawn(self, seed: int, rows: int) -> Tensor:
        return draw(seed, 0, self.heads.kv_heads, rows, self.heads.key_dim, *self.law)

    def projection_now(self) -> Tensor:
        if not self.training or self.redraw_interval is None:
            return self.projection
        return scheduled_projection(self.projection, self.calls, self.redraw_interval, self.heads.seed, *self.law)

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the projection again, now."""
        seed = int(torch.randint(2**63 - 1, (), generator=generator))
        self.projection = self._drawn(seed, self.projection.shape[1]).to(self.projection)


def draw(
    seed: int, number: int, heads: int, rows: int, dim: int, orthogonal: bool, norms: str, pool: int | None
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


@without_gradient(
    "scheduled_projection",
    fake=lambda projection, *_: torch.empty_like(projection),
    changes=("projection", "calls"),
)
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
