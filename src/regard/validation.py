"""What a mechanism refuses before it attends: arguments that do not fit, and requests outside its facts."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.bias import ScoreBias
from regard.errors import InputError, ShapeError, UnsupportedError
from regard.options import registered_name
from regard.state import State

if TYPE_CHECKING:
    from regard.core import Attention


def check_inputs(
    mechanism: "Attention",
    inputs: Mapping[str, Tensor],
    q: Tensor,
    k: Tensor,
    query_start: int | None,
    past: int,
) -> None:
    """Refuse inputs other than those declared, of other shapes, or out of their bounds.

    Raises:
        ShapeError, InputError: as `Attention.forward`.
    """
    declared = mechanism.info.inputs
    if not inputs and not declared:
        return
    who = registered_name(type(mechanism))
    if set(inputs) != set(declared):
        raise ShapeError(f"{who} takes the inputs {sorted(declared)}, got {sorted(inputs)}")
    slots = {"queries": q.shape[2], "keys": k.shape[2]}
    if mechanism.heads.causal and query_start is not None:
        slots["keys"] = max(k.shape[2], query_start + q.shape[2] - past)
    for name, each in declared.items():
        x, (heads, width) = inputs[name], each.shape(mechanism.heads)
        wanted = (q.shape[0], heads, slots[each.slots], width)
        if x.shape != wanted or not x.is_floating_point():
            raise ShapeError(
                f"{who}: input {name} must be floating (batch, heads, {each.slots}, width) = {wanted}, "
                f"got {x.dtype} {tuple(x.shape)}"
            )
        if torch.compiler.is_compiling() or not x.numel():
            continue
        low, high = (float(end) for end in x.detach().aminmax())
        if low < each.low or high > each.high:
            raise InputError(
                f"{who}: input {name} must lie in [{each.low}, {each.high}], got {low} to {high}; "
                "`activate` makes it from raw projections"
            )


def check_call(
    mechanism: "Attention",
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    bias: ScoreBias | None,
    marks: Tensor | None,
    state: State | None,
    query_start: int | None,
) -> None:
    """Refuse tensors that do not fit each other or the mechanism, and whatever it does not support.

    Raises:
        UnsupportedError, ShapeError: as `Attention.forward`.
    """
    name, heads, info = registered_name(type(mechanism)), mechanism.heads, mechanism.info
    supports = info.supports
    for x, (label, (count, width)) in zip((q, k, v), mechanism.widths.items(), strict=True):
        if x.ndim != 4 or x.shape[1] != count or x.shape[3] != width or x.shape[0] != q.shape[0]:
            raise ShapeError(
                f"{name}: {label} must be (batch={q.shape[0]}, heads={count}, length, dim={width}), "
                f"got {tuple(x.shape)}"
            )
        if not x.is_floating_point() or x.dtype != q.dtype:
            raise ShapeError(f"{name}: q, k, v must share one floating dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    queries, keys = q.shape[2], k.shape[2]
    if v.shape[2] != keys:
        raise ShapeError(f"{name}: k has {keys} positions, v has {v.shape[2]}; they must agree")
    if key_mask is not None:
        if not supports.key_mask:
            mechanism.refuse("key_mask", "key_mask")
        if key_mask.dtype != torch.bool or key_mask.shape != (q.shape[0], keys):
            raise ShapeError(
                f"{name}: key_mask must be bool (batch={q.shape[0]}, keys={keys}), True = keep, "
                f"got {key_mask.dtype} {tuple(key_mask.shape)}"
            )
        if info.anchored and (state is None or state.length == 0) and not torch.compiler.is_compiling():
            _refuse_left_padding(name, key_mask)
    if bias is not None and not supports.bias:
        mechanism.refuse("bias", "bias")
    if marks is not None:
        if not supports.marks:
            mechanism.refuse("marks", "marks")
        if marks.is_floating_point() or marks.shape != (q.shape[0], keys):
            raise ShapeError(
                f"{name}: marks must be integers (batch={q.shape[0]}, keys={keys}), "
                f"got {marks.dtype} {tuple(marks.shape)}"
            )
    if state is not None and not supports.state:
        mechanism.refuse("state", "state")
    if query_start is not None and query_start < 0:
        raise ShapeError(f"{name}: query_start is a slot, so at least 0; got {query_start}")
    if heads.causal and query_start is not None:
        if not info.mergeable:
            raise UnsupportedError(
                f"{name}: causal queries are the last slots, so query_start is theirs already; only a "
                "mechanism that is mergeable takes keys that end before"
            )
    elif heads.causal:
        if queries > keys:
            raise ShapeError(
                f"{name}: causal queries are the last positions, so there are at least as many keys; "
                f"got {queries} queries and {keys} keys"
            )
        if queries < keys and not supports.prefix:
            mechanism.refuse(f"leading keys ({queries} queries, {keys} keys)", "prefix")
    elif not supports.cross:
        if state is not None:
            mechanism.refuse("state with causal=False", "cross")
        if queries != keys:
            mechanism.refuse(f"{queries} queries on {keys} keys", "cross")
    if bias is not None:
        _check_bias(name, bias, q, keys + (0 if state is None else state.length))


def _refuse_left_padding(name: str, key_mask: Tensor) -> None:
    if bool((~key_mask[:, :1] & key_mask.any(1, keepdim=True)).any()):
        raise UnsupportedError(
            f"{name} does not support left padding: its weights or pattern belong to "
            "absolute positions. Pad on the right, or run rows of unequal length one by one"
        )


def _check_bias(name: str, bias: ScoreBias, q: Tensor, keys: int) -> None:
    batch, count, queries = q.shape[:3]
    for label, x, axis in (("curve", bias.curve, 0), ("relative", bias.relative, 0), ("query", bias.query, 1)):
        if x is not None and x.shape[axis] not in (1, count):
            raise ShapeError(f"{name}: bias.{label} has {x.shape[axis]} heads, must be 1 or {count}")
    table = bias.table
    if table is not None and (
        table.ndim != 4
        or table.shape[0] not in (1, batch)
        or table.shape[1] not in (1, count)
        or table.shape[2:] != (queries, keys)
    ):
        raise ShapeError(
            f"{name}: bias.table must be (1 or {batch}, 1 or {count}, queries={queries}, keys={keys}), "
            f"got {tuple(table.shape)}"
        )
