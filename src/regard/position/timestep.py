"""Coordinates of the Universal Transformer: where a token is, and how often it was worked on."""

from typing import final

import torch
from torch import Tensor

from regard.core.errors import ConfigError
from regard.core.info import Heads
from regard.position._base import Layout, Position, sinusoidal_code


@final
class Timestep(Position):
    """Adds P^t(i, 2c) = sin(i w_c) + sin(t w_c), P^t(i, 2c+1) = cos(i w_c) + cos(t w_c), w_c = base^(-2c/dim).

    A scheme belongs to one step, and `at(t)` is the scheme of step t: a model that applies one block several times
    writes `position.at(t).embed(x, positions)` before step t; a stack gives its t-th layer `timestep(step=t)`. The
    paper counts both from 1: slot s is its i = s + 1. No weights; any length, any number of steps.

    Args:
        heads, dim: as `Position`.
        step: t, from 1.
        base: the largest wavelength is 2 pi base^((dim-2)/dim).
        layout: as `Sinusoidal`.

    Raises:
        ConfigError: a step below 1.

    Example:
        >>> import torch
        >>> from regard.core.info import Heads
        >>> scheme, x = Timestep(Heads(count=1, key_dim=4), 4), torch.zeros(1, 1, 4)
        >>> first, second = (scheme.at(t).embed(x, torch.tensor([2 - t])) for t in (1, 2))
        >>> torch.equal(first, second)  # i = 2, t = 1 and i = 1, t = 2 have one code
        True

    Source: Dehghani et al. 2019, section 2.1.
    """

    title = "Position and time step"
    absolute = True

    def __init__(
        self, heads: Heads, dim: int, *, step: int = 1, base: float = 10000.0, layout: Layout = "interleaved"
    ) -> None:
        super().__init__(heads, dim)
        if step < 1:
            raise ConfigError(f"position timestep counts steps from 1, got step={step}")
        self.step, self.base = step, base
        self.layout: Layout = layout

    def at(self, step: int) -> "Timestep":
        """The scheme of another step."""
        return Timestep(self.heads, self.dim, step=step, base=self.base, layout=self.layout)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """`x` plus the code of each row's positions and the code of the step."""
        where, when = (
            sinusoidal_code(number, self.dim, base=self.base, layout=self.layout)
            for number in (positions + 1, torch.tensor(self.step, device=x.device))
        )
        return x + (where + when).to(x.dtype)
