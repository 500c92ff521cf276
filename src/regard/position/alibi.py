"""Attention with linear biases."""

import math
from typing import final

import torch
from torch import Tensor

from regard.core.bias import ScoreBias
from regard.core.info import Heads
from regard.position._base import Position


def slopes(count: int) -> list[float]:
    """The published geometric slopes for any number of heads.

    2^(-8t/n), t = 1 ... n, if n is a power of two; else those of the power p below n, then every other one of 2p.

    Example:
        >>> slopes(6)
        [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    """
    power = 2 ** int(math.log2(count))
    even = [2.0 ** (-8 * t / power) for t in range(1, power + 1)]
    if power == count:
        return even
    return even + [2.0 ** (-8 * t / (2 * power)) for t in range(1, 2 * power + 1)][0::2][: count - power]


@final
class Alibi(Position):
    """Adds -m_h |i - j| to the logit of query slot i and key slot j, with a fixed slope m_h for each head.

    No weights. Under a causal softmax it equals the official +m_h j, because rows shift by a constant.

    Args:
        heads, dim: as `Position`.

    Source: Press et al. 2022, section 3; |i - j| for bidirectional attention is a common variant.
    """

    title = "ALiBi"
    biased = True

    def __init__(self, heads: Heads, dim: int) -> None:
        super().__init__(heads, dim)
        self.slopes = slopes(heads.count)

    def bias(self, q: Tensor, low: int, high: int) -> ScoreBias:
        """One curve per head."""
        distance = torch.arange(high, low - 1, -1, device=q.device, dtype=torch.promote_types(q.dtype, torch.float32))
        slope = torch.tensor(self.slopes, device=q.device, dtype=distance.dtype)
        return ScoreBias(high=high, curve=(-slope[:, None] * distance.abs()).to(q.dtype))
