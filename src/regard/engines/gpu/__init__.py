"""Engines that are made for a GPU, and the calls that each is chosen for.

They are chosen in half precision, in which they were measured: on one H100 at 4,096 positions the Triton kernels of
linear attention are 10 times faster than our sums, and FlexAttention 14 times faster than our tiles.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from regard.core.bias import ScoreBias
from regard.core.compiling import exporting
from regard.core.transforms import forward_mode
from regard.engines.gpu._interpreter import INTERPRETED
from regard.engines.kernels import Kernel, register_kernel

HALF = (torch.float16, torch.bfloat16)
TRITON = find_spec("triton") is not None
FLEX_PAIRS = 1 << 20
"""queries x keys from which finding the blocks of a pattern pays"""


def _flex_serves(device: str, q: Tensor, bias: ScoreBias | None, dropout: object) -> bool:
    """All but dropout, other biases than a curve over distances, forward mode, and on a CPU gradients."""
    by_curve = bias is None or (bias.table is None and bias.relative is None)
    learning = device == "cpu" and torch.is_grad_enabled()
    return by_curve and dropout is None and not learning and not forward_mode()


def _flex_prefers(device: str, q: Tensor, bias: ScoreBias | None, dropout: object) -> bool:
    return device == "cuda" and q.dtype in HALF and q.shape[2] ** 2 >= FLEX_PAIRS and not exporting()


def _triton_serves(device: str, q: Tensor, causal: bool) -> bool:
    return causal and TRITON and (device == "cuda" or INTERPRETED) and not forward_mode()


def _triton_prefers(device: str, q: Tensor, causal: bool) -> bool:
    fast = device == "cuda" and q.dtype in HALF and not exporting()
    return fast and torch.cuda.get_device_properties(q.device).major >= 8


def _flex(*operands: Any, **given: Any) -> Any:
    from regard.engines.gpu.flex import flexed

    return flexed(*operands, **given)


def _triton(*operands: Any, **given: Any) -> Any:
    from regard.engines.gpu.linear import average

    return average(*operands, **given)


register_kernel("pattern", Kernel("flex", _flex_serves, _flex_prefers, _flex))
register_kernel("linear", Kernel("triton", _triton_serves, _triton_prefers, _triton))
