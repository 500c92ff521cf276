"""Parts of every routed engine: the choice that a token makes, and sums in a fixed order."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.features.norms import balanced
from regard.precision import accumulation_dtype
from regard.transforms import transformable

LOG2E = 1.4426950408889634
"""logits are kept in units of log 2: exp2 is several times faster than exp on a CPU"""

ELEMENTS = {"cpu": 1 << 18}
"""numbers in the largest buffer of an engine: 1 MB in float32 stays in a core's cache"""


def room(x: Tensor) -> int:
    """Numbers that a buffer on this device may hold."""
    return ELEMENTS.get(x.device.type, 1 << 25)


def exact(x: Tensor) -> torch.autocast:
    """No autocast: inside an operator it would round products to bfloat16."""
    return torch.autocast(x.device.type, enabled=False)


@torch.library.custom_op("regard::nearest_points", mutates_args=())
def nearest_points_op(x: Tensor, points: Tensor, offsets: Tensor) -> Tensor:
    """argmax_s x . points_s + offsets_s in float32, the same for a row whatever rows come with it.

    A matrix product rounds differently for other numbers of rows, which could flip a close decision between prefill and
    decoding. So where the product leaves a doubt, products summed row by row decide between the two best.

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
    # The index of the 0 in `below`; argmax takes four times as long on a CPU. A row of NaN chooses 0.
    label = torch.arange(points.shape[2], dtype=x.dtype, device=x.device)
    best = torch.add(label, below, alpha=1e30).amax(-1).nan_to_num_(0.0).int()
    slack = 1e-5 * x.norm(dim=-1, keepdim=True) * points.norm(dim=-1).amax(-1)[:, None]
    head, row, which = (below.add_(slack[..., None]).clamp_(min=0).sum(-1) > slack).nonzero(as_tuple=True)
    if len(row):
        # Ascending, so that a tie goes to the lower index.
        two = scores[head, row, which].topk(2, dim=-1).indices.sort(-1).values
        point, offset = points[head[:, None], which[:, None], two], offsets[head[:, None], which[:, None], two]
        score = (x[head, row][:, None] * point).sum(-1) + offset
        best[head, row, which] = two.gather(1, score.argmax(-1, keepdim=True))[:, 0].int()
    return best


@nearest_points_op.register_fake
def _(x: Tensor, points: Tensor, offsets: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], points.shape[1]), dtype=torch.int32)


nearest_points = transformable(nearest_points_op, chooses=True)


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
