"""Chunked causal linear attention as Triton kernels, forward and backward.

With features f_i of queries and g_j of keys (0 where padded), chunks of C positions and S, z the sums before a chunk:

    y_i = f_i S + sum_{j <= i, same chunk} (f_i . g_j) v_j,     l_i = f_i . z + sum_{j <= i, same chunk} f_i . g_j
    S  <- S + sum_j g_j v_j^T,                                  z  <- z + sum_j g_j

Only the sums run along the chunks (`_sums`); everything else is done for all chunks at once (`_outputs`). The backward
pass is the same walk from the other end (`_slopes`), then the gradients of all chunks at once; sums are made again
rather than kept. Products take the inputs' dtype and accumulate in float32 (float64 for float64), as SPEC 0.5 asks.

With TRITON_INTERPRET=1 the kernels run on a CPU, slowly, which is how they are tested where no GPU is.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.engines.operator import Wanted, operator


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
    x = Arguments(fq.contiguous(), fk.contiguous(), v.contiguous(), sum.contiguous(), normalise)
    return tuple(_average(x))  # type: ignore[return-value]


class Arguments(NamedTuple):
    """Of the operator; see `causal_average`."""

    fq: Tensor
    fk: Tensor
    v: Tensor
    sum: Tensor
    normalise: bool


class Results(NamedTuple):
    values: Tensor
    total: Tensor
    sum: Tensor


def _blank(x: Arguments) -> Results:
    values, total = x.v.new_empty(*x.fq.shape[:3], x.v.shape[3]), x.sum.new_empty(x.fq.shape[:3])
    return Results(values, total, torch.empty_like(x.sum))


def _forward(x: Arguments) -> Results:
    from regard.engines.gpu import _linear_triton_passes as passes

    states, end = passes.sums(x.fk, x.v, x.sum)
    values, total = passes.outputs(x.fq, x.fk, x.v, states, x.normalise)
    return Results(values, total, end)


def _backward(x: Arguments, out: Results, of: Results, _wanted: Wanted) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of fq, fk, v and sum."""
    from regard.engines.gpu import _linear_triton_passes as passes

    fq, fk, v, sum, _ = x
    of_values = torch.zeros_like(out.values) if of.values is None else of.values
    outer, slope = of_values.to(sum.dtype), torch.zeros_like(out.total)
    if x.normalise:  # y / l: d y = d out / l, d l = -(d out . out) / l
        safe = torch.where(out.total == 0, torch.inf, out.total)
        slope = -(outer * out.values).sum(-1) / safe
        outer = outer / safe[..., None]
    if of.total is not None:
        slope = slope + of.total
    outer = outer.to(v.dtype).contiguous()
    states, _ = passes.sums(fk, v, sum)
    after, of_sum = passes.slopes(fq, outer, slope, torch.zeros_like(sum) if of.sum is None else of.sum.contiguous())
    of_fq, of_fk = passes.feature_gradients(fq, fk, v, outer, slope, states, after)
    return of_fq, of_fk, passes.value_gradient(fq, fk, outer, after), of_sum


_average = operator(
    "linear_triton",
    _forward,
    _backward,
    fake=_blank,
    wrt=("fq", "fk", "v", "sum"),
    of=("values", "total", "sum"),
    keeps=("values", "total"),
)
