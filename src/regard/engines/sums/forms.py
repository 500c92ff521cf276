"""The other forms of linear attention: quadratic and recurrent. For tests, claims and short inputs."""

import torch
from torch import Tensor

from regard.core.attention import accumulation_dtype
from regard.engines.sums.passes import divisor, empty_sum, turned
from regard.engines.sums.step import Averaged
from regard.features.maps import FeatureMap


def average_by(
    form: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sum: Tensor | None,
    maps: tuple[FeatureMap, FeatureMap],
    key_mask: Tensor | None,
    rotation: Tensor | None,
    causal: bool,
    normalise: bool,
) -> Averaged:
    """`kernel_average` without log weights, in the named form."""
    dtype = accumulation_dtype(q.dtype)
    sum = empty_sum(k, v, maps[1]) if sum is None else sum
    with torch.autocast(q.device.type, enabled=False):
        fq, fk = maps[0](q.to(dtype)), maps[1](k.to(dtype))
        if rotation is not None:
            fq, fk = turned(fq, rotation[:, k.shape[2] - q.shape[2] :]), turned(fk, rotation)
        ones = torch.ones(*v.shape[:3], 1, dtype=dtype, device=v.device)
        real = ones if key_mask is None else ones * key_mask[:, None, :, None]
        columns = torch.cat([v.to(dtype), real], -1)
        grouped = fq.unflatten(1, (k.shape[1], -1))
        y, end = FORMS[form](grouped, fk[:, :, None], columns[:, :, None], sum.to(dtype)[:, :, None], causal)
        y = y.flatten(1, 2)
        values, total = y[..., :-1], y[..., -1]
        if normalise:
            values = values / divisor(total)[..., None]
    return Averaged(values.to(q.dtype), total, total.new_empty(0), end[:, :, 0], total.new_empty(0))


def _quadratic(fq: Tensor, fk: Tensor, columns: Tensor, start: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Every pair: phi(Q) phi(K)^T, then the columns. Also what came before: phi(Q) S."""
    pairs = fq @ fk.mT
    if causal:
        pairs = pairs.tril(fk.shape[-2] - fq.shape[-2])
    return pairs @ columns + fq @ start, start + fk.mT @ columns


def _recurrent(fq: Tensor, fk: Tensor, columns: Tensor, start: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """One key after another: S_t = S_{t-1} + phi(k_t) v_t^T, out_t = phi(q_t) S_t."""
    before, state, rows = fk.shape[-2] - fq.shape[-2], start, []
    asked = fq.unbind(-2)  # one by one from here on: the backward pass of a slice in a loop touches the whole tensor
    for t, (key, value) in enumerate(zip(fk.unbind(-2), columns.unbind(-2), strict=True)):
        state = state + key[..., :, None] * value[..., None, :]
        if causal and t >= before:
            rows.append(asked[t - before][..., None, :] @ state)
    return (torch.cat(rows, -2) if rows else fq @ state), state


FORMS = {"quadratic": _quadratic, "recurrent": _recurrent}
