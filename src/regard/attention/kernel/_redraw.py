"""Projections that are drawn again on a schedule while training, and not twice when a block is recomputed."""

import torch
from torch import Tensor

from regard.core import generator, recomputing
from regard.projections import draw_projection


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
