"""Chunked causal linear attention as Triton kernels, forward and backward, for `impl="triton"` of the kernel family.

With features f_i of queries and g_j of keys (0 where padded), chunks of C positions and S, z the sums before a chunk:

    y_i = f_i S + sum_{j <= i, same chunk} (f_i . g_j) v_j,     l_i = f_i . z + sum_{j <= i, same chunk} f_i . g_j
    S  <- S + sum_j g_j v_j^T,                                  z  <- z + sum_j g_j

Only the sums run along the chunks (`_sums`); everything else is done for all chunks at once (`_outputs`). The backward
pass is the same walk from the other end (`_slopes`), then the gradients of all chunks at once; sums are made again
rather than kept. Products take the inputs' dtype and accumulate in float32 (float64 for float64), as SPEC 0.5 asks.

With TRITON_INTERPRET=1 the kernels run on a CPU, slowly, which is how they are tested where no GPU is.
"""

from importlib.util import find_spec

import torch
from jaxtyping import Float
from torch import Tensor

from regard.core.errors import UnsupportedError
from regard.core.transforms import guarded
from regard.engines.gpu._interpreter import INTERPRETED


def require() -> None:
    """Refuse where the kernels cannot run.

    Raises:
        UnsupportedError: triton is not installed, or there is neither a CUDA device nor Triton's interpreter.
    """
    if find_spec("triton") is None:
        raise UnsupportedError('impl="triton" needs the package triton: pip install triton, or leave impl="auto"')
    if not (INTERPRETED or torch.cuda.is_available()):
        raise UnsupportedError(
            'impl="triton" needs a CUDA device (or TRITON_INTERPRET=1 in the environment, which is slow); '
            'impl="auto" serves every device'
        )


def causal_average(
    fq: Float[Tensor, "batch heads queries features"],
    fk: Float[Tensor, "batch kv_heads queries features"],
    v: Float[Tensor, "batch kv_heads queries value"],
    sum: Float[Tensor, "batch kv_heads features columns"],
    normalise: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Causal averages under weights f_i . g_j.

    Args:
        fq: features of the queries.
        fk: features of the keys at the same positions; 0 where a key is padding.
        v: values; finite.
        sum: (features, value + 1) sums before the first key; the last column is the normaliser's.
        normalise: divide by the sum of the weights; a row whose weights sum to 0 gives 0.

    Returns:
        (values, total, sum): (batch, heads, queries, value) in v's dtype, (batch, heads, queries) the normaliser, and
        the sums behind the last key; all differentiable, once.
    """
    return _averaged(fq.contiguous(), fk.contiguous(), v.contiguous(), sum.contiguous(), normalise)


@torch.library.custom_op("regard::linear_triton", mutates_args=())
def _average(fq: Tensor, fk: Tensor, v: Tensor, sum: Tensor, normalise: bool) -> tuple[Tensor, Tensor, Tensor]:
    from regard.engines.gpu import _linear_triton_passes as passes

    states, end = passes.sums(fk, v, sum)
    values, total = passes.outputs(fq, fk, v, states, normalise)
    return values, total, end


@_average.register_fake
def _(fq, fk, v, sum, normalise):
    return v.new_empty(*fq.shape[:3], v.shape[3]), sum.new_empty(fq.shape[:3]), torch.empty_like(sum)


@torch.library.custom_op("regard::linear_triton_backward", mutates_args=())
def _average_backward(
    of_values: Tensor,
    of_total: Tensor | None,
    of_end: Tensor | None,
    fq: Tensor,
    fk: Tensor,
    v: Tensor,
    sum: Tensor,
    values: Tensor,
    total: Tensor,
    normalise: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of fq, fk, v and sum."""
    from regard.engines.gpu import _linear_triton_passes as passes

    outer, slope = of_values.to(sum.dtype), torch.zeros_like(total)
    if normalise:  # y / l: d y = d out / l, d l = -(d out . out) / l
        safe = torch.where(total == 0, torch.inf, total)
        slope = -(outer * values).sum(-1) / safe
        outer = outer / safe[..., None]
    if of_total is not None:
        slope = slope + of_total
    outer = outer.to(v.dtype).contiguous()
    states, _ = passes.sums(fk, v, sum)
    after, of_sum = passes.slopes(fq, outer, slope, torch.zeros_like(sum) if of_end is None else of_end.contiguous())
    of_fq, of_fk = passes.feature_gradients(fq, fk, v, outer, slope, states, after)
    return of_fq, of_fk, passes.value_gradient(fq, fk, outer, after), of_sum


@_average_backward.register_fake
def _(of_values, of_total, of_end, fq, fk, v, sum, values, total, normalise):
    return torch.empty_like(fq), torch.empty_like(fk), torch.empty_like(v), torch.empty_like(sum)


_pulled = guarded(_average_backward)


def _setup_context(ctx, inputs, output) -> None:
    *tensors, ctx.normalise = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[0], output[1])


def _backward(ctx, of_values, of_total, of_end):
    saved = ctx.saved_tensors
    if of_values is None:
        of_values = torch.zeros_like(saved[4])
    return *_pulled(of_values, of_total, of_end, *saved, ctx.normalise), None


_average.register_autograd(_backward, setup_context=_setup_context)
_averaged = guarded(_average)
