"""Rows of a call on kept slots, between which nothing is dropped: their values, and what they gave each slot."""

from dataclasses import replace
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.core.attention import Attention
from regard.core.bias import ScoreBias
from regard.core.state import Slots, Tape
from regard.memory.caches._slots import Rows


class Seen(NamedTuple):
    """values: (batch, heads, queries, value). slots: the mechanism's, with the new ones. weights: (batch, kv_heads,
    slots), what the real queries of a head's group gave each of these, summed; None: not asked for."""

    values: Tensor
    slots: Slots
    weights: Tensor | None


def together(
    attention: Attention,
    rows: Rows,
    slots: Slots,
    slot: Int[Tensor, "batch kv_heads slots"],
    *,
    weigh: bool,
    counted: Tensor | None,
) -> Seen:
    """Attend to kept slots and to the new ones.

    Where nothing was dropped the mechanism goes on from its own state, bit for bit. Where it sees content alone, the
    kept slots stand side by side, and a bias is read at the distances that they have. Else they are put back where they
    were, each head of keys in a batch row of its own, and what is missing is masked.

    Args:
        weigh: whether weights are asked for.
        counted: (batch, keys), the tokens whose queries weigh; None: all real ones.
    """
    asked = {"weigh": weigh, "counted": counted}
    if slots.kept == slots.length:
        return _on(attention, rows, slots, **asked)
    if attention.info.sees_content_only:
        queries, keys = rows.q.shape[2], rows.k.shape[2]
        if rows.bias is not None:
            bias = at_slots(rows.bias, slot, attention.heads.count, queries, keys, slots.length)
            rows = rows._replace(bias=bias)
        seen = _on(attention, rows, replace(slots, length=slots.kept), **asked)
        return seen._replace(slots=replace(seen.slots, length=slots.length + keys))
    return _put_back(attention, rows, slots, slot, **asked)


def _on(attention: Attention, rows: Rows, past: Slots, *, weigh: bool, counted: Tensor | None) -> Seen:
    answer = rows.through(attention, past)
    weights = weights_of(attention, rows, past, counted) if weigh and rows.q.shape[2] else None
    return Seen(answer.values, cast(Slots, answer.state), weights)


def weights_of(
    attention: Attention, rows: Rows, past: Slots, counted: Tensor | None
) -> Float[Tensor, "batch kv_heads slots"]:
    """What the real queries that count gave each slot, summed over them and over the heads of a group.

    The output is affine in the values, so its gradient by the first channel of a value is the sum of the weights that
    this value got: no weight of a pair is ever kept.
    """
    with torch.inference_mode(False), torch.enable_grad():
        data = {name: _own(x) for name, x in past.view().items()}
        old, new = data["v"].requires_grad_(), _own(rows.v).requires_grad_()
        before = Slots(Tape(data, past.kept, past.kept), 0, past.kept, past.length, {}, past.spec_tag)
        q, k, bias = _own(rows.q), _own(rows.k), rows.bias
        mask = None if rows.key_mask is None else _own(rows.key_mask)
        lead = k.shape[2] - q.shape[2]
        asked = None if mask is None else mask[:, None, lead:]
        if asked is not None:
            q = q.masked_fill(~asked[..., None], 0)  # a padded query may be NaN, and would make its weights so
        if counted is not None:
            asked = counted[:, None, lead:] if asked is None else asked & counted[:, None, lead:]
        if bias is not None:
            parts = {name: getattr(bias, name) for name in ("curve", "query", "relative", "table")}
            bias = replace(bias, **{name: _own(x) for name, x in parts.items() if x is not None})
        given = Rows(q, k, new, mask, bias).through(attention, before).values[..., 0]
        total = given.sum() if asked is None else torch.where(asked, given, 0.0).sum()
        grads = torch.autograd.grad(total, [old, new])
    return torch.cat([x[..., 0] for x in grads], 2).float()


def _own(x: Tensor) -> Tensor:
    """Without a graph, and such that one may keep it."""
    return x.detach().clone() if x.is_inference() else x.detach()


def at_slots(
    bias: ScoreBias, slot: Int[Tensor, "batch kv_heads slots"], heads: int, queries: int, keys: int, past: int
) -> ScoreBias:
    """A bias as a table over the kept slots of every head and `keys` new ones behind `past`, for the last `queries`."""
    new = torch.arange(past, past + keys, device=slot.device)
    at = torch.cat([slot.long(), new.expand(*slot.shape[:2], keys)], 2)
    at = at.clamp_min(0).repeat_interleave(heads // at.shape[1], 1)[:, :, None]
    at = at.expand(-1, -1, queries, -1)
    total: Tensor | None = None
    if bias.by_distance:
        column = bias.high - (new[keys - queries :, None] - at)
        inside = (column >= 0) & (column < bias.distances)
        column = column.clamp(0, max(bias.distances - 1, 0))
        logits: list[Tensor] = []
        if bias.curve is not None:
            logits.append(bias.curve[None, :, None])
        if bias.query is not None and bias.relative is not None:
            logits.append(bias.query @ bias.relative.mT)
        total = sum((x.expand(*at.shape[:3], -1).gather(-1, column) for x in logits), torch.zeros(()))
        total = total.masked_fill(~inside, 0)
    if bias.table is not None:
        table = bias.table.expand(*at.shape[:3], -1).gather(-1, at)
        if table.dtype == torch.bool:
            table = torch.zeros(table.shape, device=table.device).masked_fill(~table, float("-inf"))
        total = table if total is None else total + table
    return ScoreBias(table=total)


def _put_back(
    attention: Attention, rows: Rows, slots: Slots, slot: Tensor, *, weigh: bool, counted: Tensor | None
) -> Seen:
    batch, kv, _ = slot.shape
    length, group, queries = slots.length, attention.heads.group, rows.q.shape[2]
    at = slot.long().masked_fill(slot < 0, length)  # padding goes behind the end, which is cut off
    real = torch.zeros(batch, kv, length + 1, dtype=torch.bool, device=slot.device).scatter(2, at, True)[..., :length]
    data = {"key_mask": real.flatten(0, 1)}
    for name, x in slots.view().items():
        if name != "key_mask":
            room = x.new_zeros(batch, kv, length + 1, x.shape[3])
            whole = room.scatter(2, at[..., None].expand_as(x), x)[:, :, :length]
            data[name] = whole.repeat_interleave(kv, 0)
    past = Slots(Tape(data, length, length), 0, length, length, {}, attention.spec_tag)
    bias, key_mask = rows.bias, rows.key_mask
    q, k, v = (x.repeat_interleave(kv, 0) for x in rows[:3])
    mask = None if key_mask is None else key_mask.repeat_interleave(kv, 0)
    if bias is not None:
        query, table = (x if x is None or len(x) == 1 else x.repeat_interleave(kv, 0) for x in (bias.query, bias.table))
        bias = replace(bias, query=query, table=table)
    counted = None if counted is None else counted.repeat_interleave(kv, 0)
    seen = _on(attention, Rows(q, k, v, mask, bias), past, weigh=weigh, counted=counted)
    width = seen.values.shape[3]  # -1 would be undecided without queries, or without rows
    of_group = seen.values.view(batch, kv, kv, group, queries, width).diagonal(dim1=1, dim2=2).movedim(-1, 1)
    new = {name: x[::kv, :, length:] for name, x in seen.slots.view().items() if name != "key_mask"}
    weights = None
    if seen.weights is not None:
        own = seen.weights.view(batch, kv, kv, seen.weights.shape[2]).diagonal(dim1=1, dim2=2).movedim(-1, 1)
        weights = torch.cat([own[..., :length].gather(2, at.clamp(max=length - 1)), own[..., length:]], 2)
    return Seen(of_group.flatten(1, 2), slots.append(key_mask, **new), weights)
