"""Softmax over the keys that a choice gives each query: buckets, codes, lists, samples.

In: q (batch, heads, queries, dim), k (batch, kv_heads, keys, dim), v (batch, kv_heads, keys, value), and the choices as
integers: codes (batch, heads, length, rounds), or key numbers (batch, heads, queries, count); masks, causality.
Out: averages in at least float32, differentiable once with respect to q, k, v; choices are constants. A query without a
key gives 0.

- `buckets.bucketed`: pairs that share a code in some round, sorted into buckets, a tile at a time; with the lse.
- `codes.coded`: keys that are replaced by their codebook entry, block by block, with sums of earlier blocks.
- `lists.listed`: a list of keys for every query. `sampling.sampled_keys`: keys drawn by their weights.
- `nearest_points`, `vertices`: the choices themselves, of each token alone, so that cuts of a sequence do not matter.

Promised: sums in one order for every cut of a sequence; near ties are decided by the token alone.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.core.precision import accumulation_dtype
from regard.engines.operator import without_gradient
from regard.features.norms import balanced

LOG2E = 1.4426950408889634
"""logits are kept in units of log 2: exp2 is several times faster than exp on a CPU"""

ELEMENTS = {"cpu": 1 << 18}
"""numbers in the largest buffer of an engine: 1 MB in float32 stays in a core's cache"""


def room(x: Tensor) -> int:
    """Numbers that a buffer on this device may hold."""
    return ELEMENTS.get(x.device.type, 1 << 25)


class Averages(NamedTuple):
    """What an operator over codes returns, in the dtype of the arithmetic, at least float32."""

    values: Tensor
    """(batch, heads, queries, value)"""
    lse: Tensor
    """(batch, heads, queries): log-sum-exp of the logits, in base 2"""


def blank_averages(x: Any) -> Averages:
    """Unwritten, for arguments with queries `q` and values `v`."""
    values = x.q.new_empty((*x.q.shape[:3], x.v.shape[3]), dtype=accumulation_dtype(x.q.dtype))
    return Averages(values, values.new_empty(x.q.shape[:3]))


def exact(x: Tensor) -> torch.autocast:
    """No autocast: inside an operator it would round products to bfloat16."""
    return torch.autocast(x.device.type, enabled=False)


def doubled(x: Tensor) -> Tensor:
    """In float64, where the device has it: a product of another shape then rounds too little to change a choice."""
    return x.to(torch.float32 if x.device.type == "mps" else torch.float64)


@without_gradient(
    "nearest_points",
    fake=lambda x, points, _: x.new_empty((x.shape[0], x.shape[1], points.shape[1]), dtype=torch.int32),
)
def nearest_points(x: Tensor, points: Tensor, offsets: Tensor) -> Tensor:
    """argmax_s x . points_s + offsets_s of float32 numbers, the same for a row whatever rows come with it.

    A matrix product rounds differently for other numbers of rows, which could flip a close decision between prefill and
    decoding. So every choice that rounding may have moved from the best is compared by a sum in one order, in float64;
    of equal ones the first is chosen.

    Args:
        x: (heads, rows, dim).
        points: (heads, sets, choices, dim).
        offsets: (heads, sets, choices).

    Returns:
        int32 (heads, rows, sets).
    """
    heads, rows, _ = x.shape
    sets, choices = points.shape[1:3]
    chosen = x.new_zeros((heads, rows, sets), dtype=torch.int32)
    step = max(1, room(x) // max(1, heads * sets * choices))
    with exact(x):
        points, offsets = points.float(), offsets.float()
        for at in range(0, rows, step):
            chosen[:, at : at + step] = _best(x[:, at : at + step].float(), points, offsets)
    return chosen


def _best(x: Tensor, points: Tensor, offsets: Tensor) -> Tensor:
    scores = torch.baddbmm(offsets.flatten(1)[:, None], x, points.flatten(1, 2).mT).unflatten(2, points.shape[1:3])
    below = scores - scores.amax(-1, keepdim=True)
    # The first index of a 0 in `below`; argmax takes four times as long on a CPU. A row of NaN chooses 0.
    label = -torch.arange(points.shape[2], dtype=x.dtype, device=x.device)
    best = -torch.add(label, below, alpha=1e30).amax(-1).nan_to_num_(0.0).int()
    # Sums of `dim` products, in any order, move two scores apart by less.
    size = x.norm(dim=-1, keepdim=True) * points.norm(dim=-1).amax(-1)[:, None] + offsets.abs().amax(-1)[:, None]
    slack = (x.shape[2] + 4) * torch.finfo(x.dtype).eps * size
    head, row, which = (below.add_(slack[..., None]).clamp_(min=0).sum(-1) > slack).nonzero(as_tuple=True)
    if len(row):
        doubt, choice = below[head, row, which].nonzero(as_tuple=True)
        pairs = torch.stack([head[doubt], row[doubt], which[doubt], choice]).split(max(1, room(x) // x.shape[2]), 1)
        sums = torch.cat([_summed(x[h, r], points[h, w, c]) + offsets[h, w, c] for h, r, w, c in pairs])
        close = sums.new_full((len(row), points.shape[2]), float("-inf")).index_put((doubt, choice), sums)
        best[head, row, which] = close.argmax(-1).int()
    return best


def _summed(x: Tensor, points: Tensor) -> Tensor:
    """x . points of each row in float64, in an order that only the width sets."""
    products = doubled(x) * doubled(points)
    while (width := products.shape[1]) > 1:
        products = F.pad(products, (0, width % 2)).unflatten(1, (2, -1)).sum(1)
    return products[:, 0]


def near_one(x: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
    """Rows for choices by direction alone: times powers of 2, since float32 may hold neither a row nor its products."""
    return balanced(x.detach().to(accumulation_dtype(x.dtype)), raised=True)[0]


def vertices(rotations: Float[Tensor, "*hashes dim half"]) -> Float[Tensor, "*hashes buckets dim"]:
    """The columns of R, then their opposites: the vector that stands for each bucket; that of a single bucket is 0."""
    axes = rotations.mT
    return torch.cat([axes, -axes], -2) if axes.shape[-2] else axes.new_zeros(*axes.shape[:-2], 1, axes.shape[-1])


def lost(x: Tensor) -> Tensor:
    """Rows that hold NaN, (..., 1): the largest number of such a row is NaN, which is found at a tenth of the cost."""
    return x.amax(-1, keepdim=True).isnan()


def accumulate(
    into: Float[Tensor, "places width"], index: Int[Tensor, " rows"], x: Float[Tensor, "rows width"]
) -> None:
    """into[index] += x, in an order that is the same at every run."""
    if x.device.type == "cpu":
        into.index_add_(0, index, x)
    else:
        into.index_put_((index,), x, accumulate=True)  # sorts first; index_add_ adds in any order on a GPU
