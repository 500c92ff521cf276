"""Losses that press linear attention to be sparse, and what each of them measures.

Only the first three take linear time. That of the output is what the exact-retrieval article writes: it says nothing
about the weights. The L1 norm of a row of normalised weights is 1 whatever they are, so the L1 norm that can act is
that of the weights before they are normalised. The others measure normalised rows, a chunk of queries at a time.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.core import Call
from regard.engines.dense.chunks import Rule, chunked, publish
from regard.features.maps import FeatureMap

OF_OUTPUT = ("output_l1", "output_l1_sum")
OF_ROWS = ("entropy", "hoyer", "l_half")


def penalty(
    kind: str,
    values: Float[Tensor, "batch heads queries value"],
    total: Float[Tensor, "batch heads queries"],
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    maps: tuple[FeatureMap, FeatureMap],
    call: Call,
) -> Float[Tensor, ""]:
    """The loss of that kind, over the queries that are real (those of a sequence to itself are masked as its keys are).

    output_l1: mean |out|. output_l1_sum: sum |out|. The others are means over heads and queries of a number per row:
    score_l1: sum_j A_ij with A = phi(Q) phi(K)^T, which is phi(q_i) . sum_j phi(k_j), the normaliser at hand. With
    p = A_i / sum A_i over the l keys seen: entropy: -sum_j p_j log p_j. hoyer: (|p|_1 / |p|_2 - 1) / (sqrt(l) - 1),
    0 for one key alone, 1 for equal weights (one minus Hoyer's sparseness). l_half: (sum_j p_j^(1/2))^2, 1 to l.

    Args:
        kind: which.
        values, total: the output and the normaliser of the call.
        q, k, maps: what the weights are made of.
        call: which pairs there are.
    """
    queries, keys = q.shape[2], k.shape[2]
    real = None
    if call.key_mask is not None and (call.causal or queries == keys):
        real = call.key_mask[:, keys - queries :]
    if kind in OF_OUTPUT:
        size = values.abs().to(total.dtype)
        if kind == "output_l1_sum":
            return (size if real is None else size * real[:, None, :, None]).sum()
        return _mean(size.mean(-1), real)
    if kind == "score_l1":
        return _mean(total, real)
    fq, fk = maps[0](q.to(total.dtype)), maps[1](k.to(total.dtype)).repeat_interleave(q.shape[1] // k.shape[1], 1)
    one = fk.new_zeros(*fk.shape[:3], 1)
    return _mean(chunked(RULES[kind], fq, fk, one, call)[..., 0], real)


def _mean(x: Tensor, real: Tensor | None) -> Tensor:
    if real is None:
        return x.mean()
    return (x * real[:, None]).sum() / (real.sum() * x.shape[1]).clamp_min(1)


def _score(q: Tensor, k: Tensor, distances: Tensor) -> Tensor:
    del distances
    return q @ k.mT


def _normalise(scores: Tensor) -> Tensor:
    """Row-normalised weights, 0 at hidden keys, with the number of keys seen as a last column."""
    hidden = scores == float("-inf")
    weights = scores.masked_fill(hidden, 0)
    total = weights.sum(-1, keepdim=True)
    count = (~hidden).sum(-1, keepdim=True).to(scores.dtype)
    return torch.cat([weights / torch.where(total == 0, 1, total), count], -1)


def _root(x: Tensor) -> Tensor:
    """sqrt, with slope 0 at 0."""
    return torch.where(x > 0, torch.where(x > 0, x, 1).sqrt(), 0)


def _entropy(p: Tensor, v: Tensor, distances: Tensor) -> Tensor:
    del v, distances
    p = p[..., :-1]
    return -(p * torch.where(p > 0, p, 1).log()).sum(-1, keepdim=True)


def _hoyer(p: Tensor, v: Tensor, distances: Tensor) -> Tensor:
    del v, distances
    p, count = p[..., :-1], p[..., -1:]
    norm = _root(p.square().sum(-1, keepdim=True))
    several = (count > 1) & (norm > 0)
    return torch.where(several, (1 / torch.where(several, norm, 1) - 1) / (count.clamp_min(2).sqrt() - 1), 0)


def _l_half(p: Tensor, v: Tensor, distances: Tensor) -> Tensor:
    del v, distances
    return _root(p[..., :-1]).sum(-1, keepdim=True).square()


RULES = {
    name: publish(f"sparsity of rows({name})", Rule(_score, _normalise, relative=True, average=average))
    for name, average in (("entropy", _entropy), ("hoyer", _hoyer), ("l_half", _l_half))
}
