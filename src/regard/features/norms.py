"""Lengths of vectors whose squares would leave the type."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from regard.core.compiling import known_within


def balanced(
    x: Float[Tensor, "*rows dim"], *, raised: bool = False
) -> tuple[Float[Tensor, "*rows dim"], Float[Tensor, "*rows 1"]]:
    """Each row times the power of 2 that takes its largest number below 1, and these powers; they round nothing.

    A float32 number of 1e19 has a square beyond float32, and a row over its infinite norm is 0: finite, and wrong.

    Args:
        raised: small rows too, whose squares would vanish; else they stay.
    """
    still = x.detach()
    largest = torch.maximum(still.amax(-1, keepdim=True), -still.amin(-1, keepdim=True))
    most = round(-math.log2(torch.finfo(x.dtype).tiny))
    power = torch.frexp(largest).exponent.clamp(-most if raised else 0, most)
    factor = torch.ldexp(torch.ones_like(largest), -power)
    return x * factor, factor


def short(square: Float[Tensor, "*rows 1"]) -> bool:
    """Whether rows with these squares of a length are known to need no balance, small ones apart: a cheaper look.

    In a gradient stands the power -3/2 of the square, which must stay in the type too.
    """
    return known_within(square, high=torch.finfo(square.dtype).tiny ** -0.5)


def unit(x: Float[Tensor, "*rows dim"], least: float) -> Float[Tensor, "*rows dim"]:
    """x / |x|; a norm below `least` counts as it, so that a row of zeros stays one.

    Args:
        least: far above the root of the type's smallest number, or the squares of rows that count would vanish; 0 for
            rows of another length than 0 that `balanced` has raised.
    """
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    if short(norm.square()):
        return x / norm.clamp_min(least)
    small, factor = balanced(x)
    return small / torch.linalg.vector_norm(small, dim=-1, keepdim=True).clamp_min(least * factor)
