"""Chunked causal linear attention by flash-linear-attention, for `impl="fla"` of the kernel family.

Its `chunk_linear_attn` gives the numerators and the sums. The normaliser f_i . sum_{j <= i} g_j is made here, from a
running sum of the features, so that a row without weight is 0 and the state is the same as that of every other form.
"""

from importlib import import_module
from importlib.util import find_spec

import torch
from jaxtyping import Float
from torch import Tensor

from regard.core.errors import UnsupportedError


def require() -> None:
    """Refuse where the kernels cannot run.

    Raises:
        UnsupportedError: fla is not installed, or there is no CUDA device.
    """
    if find_spec("fla") is None:
        raise UnsupportedError('impl="fla" needs a package: pip install flash-linear-attention, or leave impl="auto"')
    if not torch.cuda.is_available():
        raise UnsupportedError('impl="fla" needs a CUDA device; impl="auto" serves every device')


def causal_average(
    fq: Float[Tensor, "batch heads queries features"],
    fk: Float[Tensor, "batch kv_heads queries features"],
    v: Float[Tensor, "batch kv_heads queries value"],
    sum: Float[Tensor, "batch kv_heads features columns"],
    normalise: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Causal averages under weights f_i . g_j; arguments and results as `linear_triton.causal_average`."""
    published = import_module("fla.ops.linear_attn").chunk_linear_attn
    group = fq.shape[1] // fk.shape[1]
    lengthwise = [x.transpose(1, 2).contiguous() for x in (fq, *(x.repeat_interleave(group, 1) for x in (fk, v)))]
    start = sum[..., :-1].repeat_interleave(group, 1).contiguous()
    if v.shape[3]:
        y, end = published(*lengthwise, scale=1.0, initial_state=start, output_final_state=True, normalize=False)
    else:
        y, end = lengthwise[2], start
    keys = sum[..., -1][:, :, None] + fk.to(sum.dtype).cumsum(2)
    total = (fq.to(sum.dtype) * keys.repeat_interleave(group, 1)).sum(-1)
    values = y.transpose(1, 2)
    if normalise:
        empty = total == 0
        values = (values / torch.where(empty, 1.0, total)[..., None]).masked_fill(empty[..., None], 0)
    end = end[:, ::group].to(sum.dtype)  # the heads of a group share keys and values, and so their sums
    return values.to(v.dtype), total, torch.cat([end, keys[:, :, -1, :, None]], -1)
