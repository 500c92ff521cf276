"""Sines and cosines of positions."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def sinusoids(
    positions: Int[Tensor, "*positions"], width: int, base: float = 10000.0
) -> tuple[Float[Tensor, "*positions frequencies"], Float[Tensor, "*positions frequencies"]]:
    """sin and cos of position * base^(-2c/width), c = 0 ... ceil(width/2)-1, each (*positions, ceil(width/2)).

    Angles are made in float64 where the device has it: at position 65,536 float32 has lost the fourth digit.
    """
    exact = torch.float32 if positions.device.type == "mps" else torch.float64
    channel = torch.arange(0, width, 2, device=positions.device, dtype=exact)
    angle = positions[..., None].to(exact) * base ** (-channel / width)
    return angle.sin(), angle.cos()
