"""The kernel average of one token (decoding), and what every kernel average returns."""

from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core import accumulation_dtype
from regard.engines.sums.passes import LOWEST, divisor, turned
from regard.features import FeatureMap


class Averaged(NamedTuple):
    """The result of a call. `log(total) + highest` is the log of the normaliser, as `regard.core.merge` takes it."""

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
    dtype = accumulation_dtype(q.dtype)
    values, total, highest = q.new_empty(*q.shape[:3], v.shape[3]), sum.new_empty(q.shape[:3]), sum.new_empty(0)
    kind = q.device.type
    with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
        if k.shape[2]:
            fk, log = _features(k, maps[1], scale, dtype, projection, rotation)
            columns = F.pad(v.to(dtype), (0, 1), value=1.0)
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
        if q.shape[2]:
            grouped = q.unflatten(1, (k.shape[1], -1))[..., 0, :]
            fq, log = _features(grouped, maps[0], scale, dtype, projection, rotation)
            y = (fq @ sum).flatten(1, 2)[:, :, None]
            total = y[..., -1]
            values = (y[..., :-1] / divisor(total)[..., None] if normalise else y[..., :-1]).to(q.dtype)
            if top is not None:
                highest = top[..., None].expand(fq.shape[:3]) if log is None else top[..., None] + log
                highest = highest.flatten(1, 2)[..., None]
    return Averaged(values, total, highest, sum, sum.new_empty(0) if top is None else top)


def _features(
    x: Tensor, map_: FeatureMap, scale: float, dtype: torch.dtype, projection: Tensor | None, rotation: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Features of (batch, kv_heads, any, dim), all of one slot."""
    x = x.to(dtype) if scale == 1 else x.to(dtype) * scale
    if projection is None:
        features, log = map_.scaled(x, None)
    else:  # heads in front: a product that broadcasts over the batch would copy the projection for each element
        features, log = map_.scaled(x.transpose(0, 1).flatten(1, 2), projection.to(dtype))
        shape = x.shape[0], x.shape[2]
        features = features.unflatten(1, shape).transpose(0, 1)
        log = None if log is None else log.unflatten(1, shape).transpose(0, 1)
    return turned(features, rotation), log
