"""Noise that belongs to positions: the same whatever the batch, the call and the length around it."""

import torch
from torch import Tensor

from regard.core.attention import generator, recomputing
from regard.engines.operator import without_gradient

BLOCK = 32
"""positions that one generator serves: fewer would take more generators, more would draw what decoding discards"""


@without_gradient("counted_call", fake=torch.empty_like, changes=("calls",))
def counted_call(calls: Tensor) -> Tensor:
    """Count a training call, unless it repeats one inside a backward pass, and return its number."""
    if not recomputing():
        calls += 1
    return calls.clone()


def _blank_noise(
    like: Tensor, _source: Tensor, _first: int, count: int, heads: int, samples: int
) -> tuple[Tensor, Tensor]:
    shape = (heads, count, samples)
    return like.new_empty((*shape, like.shape[-1]), dtype=torch.float64), like.new_empty(shape, dtype=torch.float64)


@without_gradient("position_noise", fake=_blank_noise)
def position_noise(
    like: Tensor, source: Tensor, first: int, count: int, heads: int, samples: int
) -> tuple[Tensor, Tensor]:
    """Gaussian vectors and uniform numbers of consecutive positions, from (seed, head, position, sample) alone.

    Drawn on the CPU in float64, in blocks of positions with a generator each, for each head apart.

    Args:
        like: its last axis is the width of the vectors, its device where they go.
        source: (2,), a seed and the number of a draw.
        first, count: the positions.
        heads, samples: how many of each.

    Returns:
        float64 (heads, count, samples, width) and (heads, count, samples).
    """
    width, (seed, draw) = like.shape[-1], source.tolist()
    start = first // BLOCK
    blocks = range(start, -(-(first + count) // BLOCK))
    normal = torch.empty(heads, len(blocks), BLOCK, samples, width, dtype=torch.float64)
    uniform = torch.empty(heads, len(blocks), BLOCK, samples, dtype=torch.float64)
    for head in range(heads):
        for at, block in enumerate(blocks):
            numbers = generator(seed, "position noise", draw, head, block)
            normal[head, at] = torch.randn(BLOCK, samples, width, generator=numbers, dtype=torch.float64)
            uniform[head, at] = torch.rand(BLOCK, samples, generator=numbers, dtype=torch.float64)
    skip = first - start * BLOCK
    both = (x.flatten(1, 2)[:, skip : skip + count].to(like.device) for x in (normal, uniform))
    return next(both).contiguous(), next(both).contiguous()
