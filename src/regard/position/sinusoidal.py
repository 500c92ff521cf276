"""Sinusoidal absolute positions."""

from typing import final

from torch import Tensor

from regard.core.info import Heads
from regard.position._base import Layout, Position, sinusoidal_code


@final
class Sinusoidal(Position):
    """Adds PE(i, 2c) = sin(i w_c), PE(i, 2c+1) = cos(i w_c), w_c = base^(-2c/dim), to the hidden state of slot i.

    PE(i) . PE(j) depends on i - j only. No weights; any length.

    Args:
        heads, dim: as `Position`.
        base: the largest wavelength is 2 pi base^((dim-2)/dim).
        layout: "interleaved" (sin and cos alternate, as published) or "halves" (all sines, then all cosines): the same
            up to a permutation of channels.

    Example:
        >>> import torch
        >>> from regard.core.info import Heads
        >>> scheme = Sinusoidal(Heads(count=1, key_dim=4), 4)
        >>> scheme.embed(torch.zeros(1, 1, 4), torch.tensor([0]))
        tensor([[[0., 1., 0., 1.]]])

    Source: Vaswani et al. 2017, section 3.5.
    """

    title = "Sinusoidal"
    absolute = True

    def __init__(self, heads: Heads, dim: int, *, base: float = 10000.0, layout: Layout = "interleaved") -> None:
        super().__init__(heads, dim)
        self.base = base
        self.layout: Layout = layout

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """`x` plus the encoding of each row's positions."""
        return x + sinusoidal_code(positions, self.dim, base=self.base, layout=self.layout).to(x.dtype)
