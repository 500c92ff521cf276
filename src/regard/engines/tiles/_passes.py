"""The two passes over the tiles of a layout, in base 2 (whose exponential is the cheaper one) and in reused buffers.

Forward: scores of a step, their maximum m and sum l; values = 2^(s - m) V / l, lse = m + log2 l.
Backward: p = 2^(s - lse) again, then dV = p^T dO, dS = p (dO V^T - delta), dQ = dS K, dK = dS^T Q.
"""

import math

import torch
from torch import Tensor

from regard.engines.tiles._operands import (
    LOG2E,
    LOWEST,
    Gradients,
    Operands,
    Scratch,
    Share,
    collect,
    lanes,
    pick,
    put,
    shares,
    whole_tiles,
)
from regard.engines.tiles._scores import Scores
from regard.engines.tiles.plan import Plan


def forward(plan: Plan, operands: Operands) -> tuple[Tensor, Tensor]:
    """Values (batch, heads, queries, value) and log-sum-exp (batch, heads, queries)."""
    queries, x = operands.q.shape[2], operands.in_tiles(plan)
    values = x.q.new_empty(*x.q.shape[:3], x.v.shape[3])
    if not plan.covered:
        values.zero_()
    lse = x.q.new_full((*x.q.shape[:3], 1), -math.inf)
    scratch = Scratch(x.q)
    for share in shares(plan, x.q.shape[0], x.q.shape[1], x.k.shape[1]):
        scores = Scores(x, share, scratch)
        v, out, level = share.keys(x.v), share.blank_queries(values), share.blank_queries(lse, -math.inf)
        for group in share.layout.groups:
            for step in share.steps(group):
                logits = scores.of(group, step)
                highest = logits.amax(-1, keepdim=True).clamp_min_(LOWEST)
                weights = scores.weights(logits, highest)
                total = weights.sum(-1, keepdim=True)
                part = torch.bmm(weights, lanes(v, step, group.slots)).div_(total.clamp_min(1e-30))
                top = total.log2_().add_(highest)
                if share.again(group):
                    part, top = _merged(pick(out, step), pick(level, step), part, top)
                put(out, step, part)
                put(level, step, top)
        if share.layout.back is not None:
            _bring_back(share, values, lse, out, level)
    return values[:, :, :queries].contiguous(), lse[:, :, :queries, 0] / LOG2E


def _bring_back(share: Share, values: Tensor, lse: Tensor, out: Tensor, level: Tensor) -> None:
    """What a part has found in its own order, merged with what earlier parts have found."""
    assert share.layout.back is not None
    whole = (x[share.rows, share.heads].view(-1, x.shape[-1])[: len(share.layout.back)] for x in (values, lse))
    mine = (x.flatten(0, 1).index_select(0, share.layout.back) for x in (out, level))
    (old, old_level), (part, top) = whole, mine
    if share.later:
        part, top = _merged(old, old_level, part, top)
    old.copy_(part)
    old_level.copy_(top)


def _merged(values: Tensor, lse: Tensor, part: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """Two parts over disjoint keys as one, in base 2."""
    both = torch.logaddexp2(lse, top)
    safe = both.clamp_min(LOWEST)
    return values * (lse - safe).exp2_() + part * (top - safe).exp2_(), both


def backward(
    plan: Plan,
    operands: Operands,
    values: Tensor,
    lse: Tensor,
    grad_values: Tensor,
    grad_lse: Tensor,
    curve_learns: bool,
    relative_learns: bool,
    gates_learn: bool,
) -> Gradients:
    """Gradients of the operands from those of values and lse."""
    x, empty = operands.in_tiles(plan), lse.isinf()
    tile, _ = plan.tiles
    level = whole_tiles((lse * LOG2E).masked_fill_(empty, LOWEST)[..., None], tile)
    of_lse = whole_tiles(grad_lse.masked_fill(empty, 0)[..., None], tile)
    of_values, values = whole_tiles(grad_values, tile), whole_tiles(values, tile)
    grads = Gradients(
        torch.empty_like(x.q) if plan.covered else torch.zeros_like(x.q),
        torch.zeros_like(x.k),
        torch.zeros_like(x.v),
        torch.zeros_like(x.curve) if x.curve is not None and curve_learns else x.q.new_empty(0),
        torch.zeros_like(x.query) if x.query is not None and relative_learns else x.q.new_empty(0),
        torch.zeros_like(x.relative) if x.relative is not None and relative_learns else x.q.new_empty(0),
        *_of_levels(x, learn=gates_learn),
    )
    scratch = Scratch(x.q)
    for share in shares(plan, x.q.shape[0], x.q.shape[1], x.k.shape[1]):
        scores = Scores(x, share, scratch)
        tops, outs, slopes_lse, outers = (share.queries(y) for y in (level, values, of_lse, of_values))
        v, dq = share.keys(x.v), share.blank_queries(grads.q)
        dk, dv = (share.blank_keys(y) for y in (grads.k, grads.v))
        if share.layout.padding is not None:
            tops.view(-1)[share.layout.padding] = math.inf  # a copy: padding has no weight
        scores.learn(grads)
        for group in share.layout.groups:
            for step in share.steps(group):
                weights = scores.weights(scores.of(group, step), pick(tops, step))
                outer = pick(outers, step)
                collect(dv, step, group.slots, weights, outer)
                slope = scratch.take("slope", *weights.shape)
                torch.bmm(outer, lanes(v, step, group.slots).mT, out=slope)
                # d loss / d logit = p (dO . v - delta): softmax takes away the average of dO . v; lse adds its own.
                average = scratch.take("average", *outer.shape)
                delta = torch.mul(outer, pick(outs, step), out=average).sum(-1, keepdim=True)
                slope.sub_(delta.sub_(pick(slopes_lse, step))).mul_(weights)
                new = torch.bmm(slope, lanes(scores.k, step, group.slots))
                put(dq, step, new.add_(pick(dq, step)) if share.again(group) else new)
                collect(dk, step, group.slots, slope, pick(scores.q, step))
                scores.gather(slope, group, step)
        share.add_queries(grads.q, dq)
        share.add_keys(grads.k, dk)
        share.add_keys(grads.v, dv)
        scores.finish(grads)
    grads.q.mul_(operands.scale)
    grads.k.mul_(operands.scale)
    return grads


def _of_levels(x: Operands, *, learn: bool) -> list[Tensor]:
    """Gradients of the levels of queries and keys before the first step."""
    if x.levels is None or not learn:
        return [x.q.new_empty(0)] * 2
    return [torch.zeros_like(level[..., :1]) for level in x.levels]
