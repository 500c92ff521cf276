"""Numbers as codes of 8, 4 or 2 bits between the least and the greatest of their group."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor


def coded(x: Float[Tensor, "*shape width"], bits: int, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """Unpacked codes (of the shape of x), and the low and step of every group, which lies along an axis.

    |x - (low + code step)| <= (greatest - least) / (2 (2^bits - 1)); a group of one value is exact. Low and step are in
    float32 at least: a step of half precision is off by up to its own half for each code, and a small one is 0.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    low, high = wide.amin(axis, keepdim=True), wide.amax(axis, keepdim=True)
    step = (high - low) / (2**bits - 1)
    safe = torch.where(step == 0, 1.0, step)
    codes = ((wide - low) / safe).round().clamp(0, 2**bits - 1).to(torch.uint8)
    return codes, low, step


def decoded(codes: Tensor, low: Tensor, step: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that unpacked codes stand for, rounded to a dtype."""
    return (low + codes.to(low.dtype) * step).to(dtype)


def packed(codes: UInt8[Tensor, "*shape width"], bits: int) -> UInt8[Tensor, "*shape bytes"]:
    """Several codes to a byte along the last axis, the first in the lowest bits; the last byte is filled with 0."""
    share = 8 // bits
    filled = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % share)).unflatten(-1, (-1, share))
    shifts = torch.arange(share, device=codes.device, dtype=torch.uint8) * bits
    return (filled << shifts).sum(-1, dtype=torch.int32).to(torch.uint8)


def unpacked(codes: UInt8[Tensor, "*shape bytes"], bits: int, width: int) -> UInt8[Tensor, "*shape width"]:
    """The inverse of `packed`."""
    shifts = torch.arange(8 // bits, device=codes.device, dtype=torch.uint8) * bits
    return ((codes[..., None] >> shifts) & (2**bits - 1)).flatten(-2)[..., :width]
