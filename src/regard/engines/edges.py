"""Averages over a list of (query, key) pairs, edge by edge: nothing of queries x keys is made."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def average_over_edges(
    logits: Float[Tensor, "batch heads edges"],
    v: Float[Tensor, "batch heads keys value"],
    row: Int[Tensor, " edges"],
    column: Int[Tensor, " edges"],
    seen: Bool[Tensor, "#batch edges"],
    *,
    queries: int,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads queries value"]:
    """o_i = sum_e w_e v_column(e) over the edges e with row(e) = i, w their softmax; 0 for a row without an edge.

    Args:
        logits: of every edge.
        v: values, at least float32.
        row, column: the query and the key of every edge.
        seen: which edges count; what others hold has no influence.
        queries: rows; at least one, and at least one key and one edge.
        dropout: share of the weights that is dropped, and the others made larger for it.
    """
    hidden = ~seen[:, None]
    logits = logits.masked_fill(hidden, float("-inf"))
    shape = (*logits.shape[:2], queries)
    with torch.no_grad():
        rows = row.expand(logits.shape)
        top = logits.new_full(shape, torch.finfo(logits.dtype).min).scatter_reduce(2, rows, logits, "amax")
    odds = (logits - top[:, :, row]).exp()
    total = _summed(odds[..., None], row, queries)[..., 0]
    weights = odds / torch.where(total == 0, 1.0, total)[:, :, row]
    weights = F.dropout(weights, dropout) if dropout else weights
    carried = (weights[..., None] * v[:, :, column]).masked_fill(hidden[..., None], 0.0)
    return _summed(carried, row, queries)


def _summed(x: Float[Tensor, "batch heads edges width"], row: Int[Tensor, " edges"], queries: int) -> Tensor:
    """The sum of every row, in an order that is the same at every run."""
    into = x.new_zeros(*x.shape[:2], queries, x.shape[3])
    if x.device.type == "cpu":
        return into.index_add(2, row, x)
    along = into.movedim(2, 0)  # sorts first; index_add adds in any order on a GPU
    return along.index_put((row,), x.movedim(2, 0), accumulate=True).movedim(0, 2)
