"""The kernel average of one token (decoding), and what every kernel average returns."""

from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.attention import accumulation_dtype
from regard.engines.sums.passes import LOWEST, divisor, turned
from regard.features.maps import FeatureMap


class Averaged(NamedTuple):
    """The result of a call. `log(total) + highest` is the log of the normaliser, as `regard.merge` takes it."""

    values: Tensor
    """(batch, heads, queries, value); not normalised: to be multiplied by exp(highest)"""
    total: Tensor
    """(batch, heads, queries): the normaliser divided by exp(highest); 0 for a row without weight"""
    highest: Tensor
    """(batch, heads, queries), a constant to autograd; empty without log weights"""
    sum: Tensor
    """(batch, kv_heads, features, value + 1): sum_j exp(w_j - top) phi_k(k_j) [v_j, 1]^T"""
    top: Tensor
    """(batch, kv_heads): the largest log weight so far, a constant to autograd; empty without log weights"""


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sum: Tensor,
    top: Tensor | None,
    maps: tuple[FeatureMap, FeatureMap],
    scale: float,
    normalise: bool,
    projection: Tensor | None,
    log_weight: Tensor | None,
    key_mask: Tensor | None,
    rotation: Tensor | None,
) -> Averaged:
    """At most one query and one key (decoding): a few small operations that autograd records itself."""
    dtype, kind, none = accumulation_dtype(q.dtype), q.device.type, sum.new_empty(0)
    queries, keys, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
        if keys:
            fk, log = _features(k, maps[1], scale, dtype, projection, rotation)
            columns = F.pad(_in(v, dtype), (0, 1), value=1.0)
            if key_mask is not None:
                columns = columns * key_mask[:, None, :, None]
            if top is not None:
                log = log_weight if log is None else log if log_weight is None else log + log_weight
                assert log is not None, "a state has a top exactly where there are log weights"
                if key_mask is not None:
                    log = log.masked_fill(~key_mask[:, None], float("-inf"))
                new = torch.maximum(top, log[..., 0].detach())
                safe = new.clamp_min(LOWEST)
                sum = sum * (top - safe).to(dtype).exp()[..., None, None]
                columns = columns * (log - safe[..., None]).to(dtype).exp()[..., None]
                top = new
            sum = torch.addcmul(sum, fk.mT, columns)
        if not queries:
            values, total = q.new_empty(*q.shape[:3], v.shape[3]), sum.new_empty(q.shape[:3])
            return Averaged(values, total, none, sum, none if top is None else top)
        rows = q if group == 1 else q.unflatten(1, (-1, group))[..., 0, :]
        fq, log = _features(rows, maps[0], scale, dtype, projection, rotation)
        y, highest = fq @ sum, none
        if group > 1:
            y = y.flatten(1, 2)[:, :, None]
        values, total = y[..., :-1], y[..., -1]
        if normalise:
            values = values / divisor(total)[..., None]
        if top is not None:
            highest = top[..., None].expand(fq.shape[:3]) if log is None else top[..., None] + log
            highest = highest.flatten(1, 2)[..., None]
    return Averaged(_in(values, q.dtype), total, highest, sum, none if top is None else top)


def _in(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The same in that dtype; a call that changes nothing costs more than a look."""
    return x if x.dtype == dtype else x.to(dtype)


def _features(
    x: Tensor, map_: FeatureMap, scale: float, dtype: torch.dtype, projection: Tensor | None, rotation: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Features of (batch, kv_heads, any, dim), all of one slot."""
    x = _in(x, dtype) if scale == 1 else _in(x, dtype) * scale
    if projection is None:
        features, log = map_.scaled(x, None)
    else:  # heads in front: a product that broadcasts over the batch would copy the projection for each element
        features, log = map_.scaled(x.transpose(0, 1).flatten(1, 2), projection.to(dtype))
        shape = x.shape[0], x.shape[2]
        features = features.unflatten(1, shape).transpose(0, 1)
        log = None if log is None else log.unflatten(1, shape).transpose(0, 1)
    return turned(features, rotation), log
