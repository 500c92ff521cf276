"""Projections that are drawn again on a schedule while training, and not twice when a block is recomputed."""

import torch
from torch import Tensor

from regard.core import generator, recomputing
from regard.feature_maps import draw_projection


def draw(seed: int, number: int, heads: int, rows: int, dim: int, orthogonal: bool, norms: str) -> Tensor:
    """The draw of that number, (heads, rows, dim): each head has directions of its own."""
    return torch.stack(
        [
            draw_projection(rows, dim, generator(seed, "projection", head, number), orthogonal=orthogonal, norms=norms)
            for head in range(heads)
        ]
    )


@torch.library.custom_op("regard::scheduled_projection", mutates_args=("projection", "calls"))
def scheduled_projection(
    projection: Tensor, calls: Tensor, interval: int, seed: int, orthogonal: bool, norms: str
) -> Tensor:
    """Count a training call, draw again at every `interval`-th, and return a copy.

    A copy, because the backward pass of an earlier call still needs the projection that it saw. An operator, because
    the counter decides on the host, which no compiled graph can.
    """
    if not recomputing():
        calls += 1
        if int(calls) % interval == 0:
            heads, rows, dim = projection.shape
            projection.copy_(draw(seed, int(calls) // interval, heads, rows, dim, orthogonal, norms))
    return projection.clone()


@scheduled_projection.register_fake
def _(projection: Tensor, calls: Tensor, interval: int, seed: int, orthogonal: bool, norms: str) -> Tensor:
    return torch.empty_like(projection)
