"""Tokens picked out of every row of a batch: gathered, written back, and their biases."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.core.bias import ScoreBias
from regard.engines.tiles.operands import lowest


def gather_tokens(
    x: Float[Tensor, "b heads length dim"], at: Int[Tensor, "batch globals"]
) -> Float[Tensor, "batch heads globals dim"]:
    """The positions `at` of each row."""
    return x.expand(len(at), -1, -1, -1).gather(2, at[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def replace_tokens(
    x: Float[Tensor, "batch heads length dim"],
    at: Int[Tensor, "batch globals"],
    real: Bool[Tensor, "batch globals"],
    new: Float[Tensor, "batch heads globals dim"],
) -> Float[Tensor, "batch heads length dim"]:
    """x with `new` at the positions `at`, where `real`."""
    new = torch.where(real[:, None, :, None], new, gather_tokens(x, at))
    return x.scatter(2, at[:, None, :, None].expand_as(new), new)


def within(bias: ScoreBias, low: int, high: int) -> ScoreBias:
    """Only the columns of the distances low ... high."""
    if not bias.by_distance:
        return bias
    columns = slice(max(bias.high - high, 0), max(bias.high - low + 1, 0))
    return replace(
        bias,
        high=min(bias.high, high),
        curve=None if bias.curve is None else bias.curve[:, columns],
        relative=None if bias.relative is None else bias.relative[:, columns],
    )


def spanning(bias: ScoreBias, low: int, high: int) -> ScoreBias:
    """The columns of the distances low ... high, 0 where there were none."""
    bias = within(bias, low, high)
    if not bias.by_distance:
        return bias
    before = high - bias.high
    missing = (before, high - low + 1 - before - bias.distances)
    return replace(
        bias,
        high=high,
        curve=None if bias.curve is None else F.pad(bias.curve, missing),
        relative=None if bias.relative is None else F.pad(bias.relative, (0, 0, *missing)),
    )


def pair_logits(
    bias: ScoreBias | None, i: Int[Tensor, "batch queries"], j: Int[Tensor, "batch keys"]
) -> Float[Tensor, "b h queries keys"] | None:
    """A bias for queries and keys that are at other slots in every row; its `table` has just these rows and columns."""
    if bias is None:
        return None
    total = None if bias.table is None else ScoreBias(table=bias.table).logits(i[0], j[0])
    if not bias.by_distance:
        return total
    column = bias.high - (i[:, :, None] - j[:, None, :])
    inside = ((column >= 0) & (column < bias.distances))[:, None]
    column = column.clamp(0, bias.distances - 1)
    if bias.curve is not None:
        part = bias.curve[:, column].transpose(0, 1).masked_fill(~inside, 0)
        total = part if total is None else total + part
    if bias.query is not None and bias.relative is not None:
        if i.shape[1] <= j.shape[1]:
            by_column = bias.query @ bias.relative.mT
            part = by_column.gather(-1, column[:, None].expand(-1, by_column.shape[1], -1, -1))
        else:
            # Few keys: the vectors of their distances, not the logit of every distance for all of many queries.
            relative = bias.relative[:, column].transpose(0, 1)
            part = (relative @ bias.query[..., None]).squeeze(-1)
        part = part.masked_fill(~inside, 0)
        total = part if total is None else total + part
    return total


def columns(table: Tensor, at: Tensor) -> Tensor:
    """The columns `at` of each row of a table."""
    table = table.expand(len(at), -1, -1, -1)
    return table.gather(3, at[:, None, None, :].expand(-1, *table.shape[1:3], -1))


def merged(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    """`regard.merge` of two parts without stacking them: a step by the logistic of their log-sum-exps."""
    weight = torch.sigmoid(one[1].clamp_min(lowest(one[1])) - other[1].clamp_min(lowest(other[1])))
    return torch.lerp(other[0], one[0], weight[..., None])
