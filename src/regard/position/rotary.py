"""Rotary positions."""

from typing import final

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.info import Heads
from regard.position._base import Layout, Position, sinusoids


@final
class Rotary(Position):
    """Rotates plane c of the query at slot i and the key at slot j by i theta_c and j theta_c.

    (R_i q) . (R_j k) = q^T R_{j-i} k with theta_c = base^(-2c/width): the product depends on the distance only, and
    norms are kept. Exactly relative in mechanisms whose score is q . k.

    Args:
        heads, dim: as `Position`.
        base: the slowest plane turns once in 2 pi base^((width-2)/width) positions.
        layout: "interleaved" (planes of neighbouring channels, as published) or "halves" (channel c with channel
            c + width/2, GPT-NeoX and Llama): the same up to a permutation of the channels of q and k together.
        fraction: share of the channels that is rotated; the rest knows no position.

    Raises:
        ConfigError: a rotated width that is odd or zero.

    Example:
        >>> import torch
        >>> from regard.info import Heads
        >>> scheme = Rotary(Heads(count=1, key_dim=8), 8)
        >>> q, k = torch.randn(2, 1, 1, 1, 8)
        >>> def score(i, j):
        ...     a, b = scheme.transform(q, k, torch.tensor([i]), torch.tensor([j]))
        ...     return (a * b).sum()
        >>> bool((score(3, 1) - score(12, 10)).abs() < 1e-5)
        True

    Source: Su et al. 2021, equations 13 to 16 and 34.
    """

    title = "Rotary"
    source = "Su et al. 2021, equations 13 to 16 and 34"
    transforms = True

    def __init__(
        self,
        heads: Heads,
        dim: int,
        *,
        base: float = 10000.0,
        layout: Layout = "halves",
        fraction: float = 1.0,
    ) -> None:
        super().__init__(heads, dim)
        self.base = base
        self.layout: Layout = layout
        self.width = round(heads.key_dim * fraction)
        if self.width < 2 or self.width % 2 or self.width > heads.key_dim:
            raise ConfigError(
                f"position rotary turns pairs of channels: key_dim={heads.key_dim} and fraction={fraction} give "
                f"{self.width} channels, which must be even, at least 2 and at most key_dim"
            )

    def transform(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated queries and keys."""
        return self._rotate(q, query_positions), self._rotate(k, key_positions)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        sin, cos = (
            part.to(torch.promote_types(x.dtype, torch.float32)) for part in sinusoids(positions, self.width, self.base)
        )
        turned, still = x[..., : self.width], x[..., self.width :]
        if self.layout == "halves":
            a, b = turned.chunk(2, -1)
            rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        else:
            a, b = turned[..., 0::2], turned[..., 1::2]
            rotated = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        return torch.cat([rotated.to(x.dtype), still], -1)
