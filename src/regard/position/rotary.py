"""Rotary positions."""

from typing import NamedTuple, final

import torch
from torch import Tensor

from regard.core.errors import ConfigError
from regard.core.info import Heads
from regard.features.waves import sinusoids
from regard.position._base import Layout, Position


class _Placed(NamedTuple):
    """Slots, and the factors of a rotation at each of them, by dtype."""

    key: tuple[int, int, torch.device]
    slots: Tensor
    turns: dict[torch.dtype, tuple[Tensor, Tensor]]


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
        ConfigError: a rotated width that is odd or zero, or a base that is not positive.

    Example:
        >>> import torch
        >>> from regard.core.info import Heads
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
        if not base > 0:
            raise ConfigError(f"position rotary needs a positive base, got {base}")
        self.base = base
        self.layout: Layout = layout
        self.width = round(heads.key_dim * fraction)
        if self.width < 2 or self.width % 2 or self.width > heads.key_dim:
            raise ConfigError(
                f"position rotary turns pairs of channels: key_dim={heads.key_dim} and fraction={fraction} give "
                f"{self.width} channels, which must be even, at least 2 and at most key_dim"
            )
        self._last: _Placed | None = None

    def slots(self, start: int, stop: int, device: torch.device) -> Tensor:
        """As `Position.slots`; the layers that share this scheme get one tensor, whose angles are made once."""
        if torch.compiler.is_compiling():
            return super().slots(start, stop, device)
        key, last = (start, stop, device), self._last
        if last is None or last.key != key:
            with torch.inference_mode(False):  # autograd may read later what inference makes now
                self._last = last = _Placed(key, super().slots(start, stop, device), {})
        return last.slots

    def transform(self, q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated queries and keys."""
        return self._rotate(q, query_positions), self._rotate(k, key_positions)

    def _turn(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The factor of each channel, and that of its partner in the plane."""
        wide = torch.promote_types(dtype, torch.float32)
        last = None if torch.compiler.is_compiling() else self._last
        if last is None or positions is not last.slots:
            return self._factors(positions, wide)
        if wide not in last.turns:
            with torch.inference_mode(False):
                last.turns[wide] = self._factors(positions, wide)
        return last.turns[wide]

    def _factors(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        sin, cos = (part.to(dtype) for part in sinusoids(positions, self.width, self.base))
        if self.layout == "halves":
            return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
        return torch.stack([cos, cos], -1).flatten(-2), torch.stack([-sin, sin], -1).flatten(-2)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        if not x.shape[2]:  # of a call that remembers keys alone, or asks for queries alone
            return x
        factor, partner_factor = self._turn(positions, x.dtype)
        all_channels = self.width == x.shape[-1]
        turned = (x if all_channels else x[..., : self.width]).to(factor.dtype)
        if self.layout == "halves":
            swapped = turned.roll(self.width // 2, -1)
        else:
            swapped = turned.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        rotated = torch.addcmul(turned * factor, swapped, partner_factor).to(x.dtype)
        return rotated if all_channels else torch.cat([rotated, x[..., self.width :]], -1)
