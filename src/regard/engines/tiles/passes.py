"""The two passes over the tiles of a layout, in base 2 (whose exponential is the cheaper one) and in reused buffers.

Forward: scores of a step, their maximum m and sum l; values = 2^(s - m) V / l, lse = m + log2 l.
Backward: p = 2^(s - lse) again, then dV = p^T dO, dS = p (dO V^T - delta), dQ = dS K, dK = dS^T Q.

With dropout the weights of the sum are a_ij = p_ij f_ij, where f_ij = 0 with probability r and 1 / (1 - r) otherwise, a
constant; l and lse are those of p. O = a V, so dV = a^T dO and dp_ij = f_ij (dO_i . v_j), and the softmax takes away
sum_j p_ij dp_ij = dO_i . sum_j a_ij v_j = dO_i . O_i: delta is still that of the output, and dS = p (dp - delta).
V / (1 - r) in place of V leaves f_ij as 0 or 1, and dV to be divided by 1 - r.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from regard.engines.tiles.biases import Curve, Relative
from regard.engines.tiles.decay import Decay, faded
from regard.engines.tiles.dropout import Dropped
from regard.engines.tiles.operands import (
    LOG2E,
    Gradients,
    Group,
    Operands,
    Scratch,
    Share,
    Step,
    collect,
    lanes,
    lowest,
    pick,
    put,
    whole_tiles,
)
from regard.engines.tiles.plan import Plan


class Scores:
    """The scores of a share, step by step, in one buffer: sums of log gates, products, biases by distance, masks."""

    def __init__(self, operands: Operands, share: Share, scratch: Scratch) -> None:
        x, self.share, self.scratch = operands, share, scratch
        self.q, self.k, self.factor = share.queries(x.q), share.keys(x.k), x.scale * LOG2E
        self.hidden = None if x.hidden is None else share.keys(x.hidden)
        self.biases: list[Curve | Relative] = []
        if x.curve is not None:
            self.biases.append(Curve(x.curve, x.high, share))
        if x.query is not None and x.relative is not None:
            self.biases.append(Relative(x.query, x.relative, x.high, share, scratch))
        self.decay = None if x.levels is None else Decay(x.levels, share)

    def of(self, group: Group, step: Step) -> Float[Tensor, "count tile lanes"]:
        """log2(e) times the logits, -inf where nothing may be seen."""
        tile, size = self.share.layout.sizes
        scores = self.scratch.buffer("scores", step.count, tile, group.slots * size)
        if self.decay is not None:
            self.decay.fill(scores, group, step)
        begun = 0 if self.decay is None else 1
        scores.baddbmm_(pick(self.q, step), lanes(self.k, step, group.slots).mT, beta=begun, alpha=self.factor)
        for bias in self.biases:
            bias.add(scores, group, step)
        for slot, mask in group.hidden(step):
            part = scores.narrow(2, slot * size, size)
            if self.share.layout.whole and mask.ndim == 3:
                part, mask = part.view(-1, self.share.count, *part.shape[1:]), mask[self.share.heads]
            if mask.dtype == torch.bool:
                part.masked_fill_(mask, -math.inf)
            else:
                part.add_(mask)
        if self.hidden is not None:
            scores += lanes(self.hidden, step, group.slots).mT
        return scores

    def weights(
        self, scores: Float[Tensor, "count tile lanes"], level: Float[Tensor, "count tile 1"]
    ) -> Float[Tensor, "count tile lanes"]:
        """2^(scores - level), in the buffer of the scores."""
        scores.sub_(level)
        return (scores if self.decay is None else faded(scores)).exp2_()

    def learned(self, grads: Gradients) -> list[Curve | Relative | Decay]:
        """The parts of the scores that begin to gather slopes."""
        parts = self.biases if self.decay is None else [*self.biases, self.decay]
        return [part for part in parts if part.learn(grads)]


def forward(plan: Plan, operands: Operands) -> tuple[Tensor, Tensor]:
    """Values (batch, heads, queries, value) and log-sum-exp (batch, heads, queries)."""
    queries, x = operands.q.shape[2], operands.in_tiles(plan.tiles)
    values = x.q.new_zeros(*x.q.shape[:3], x.v.shape[3])
    lse = x.q.new_full((*x.q.shape[:3], 1), -math.inf)
    scratch = Scratch(x.q)
    for share in plan.shares(x.q.shape[0], x.q.shape[1], x.k.shape[1], x.q.device):
        scores = Scores(x, share, scratch)
        dropped = None if x.labels is None else Dropped(x.labels, share, scratch)
        v, out, level = share.keys(x.v), share.blank_queries(values), share.blank_queries(lse, -math.inf)
        for group in share.layout.groups:
            for step in share.steps(group):
                logits = scores.of(group, step)
                highest = logits.amax(-1, keepdim=True).clamp_min_(lowest(logits))
                weights = scores.weights(logits, highest)
                total = weights.sum(-1, keepdim=True)
                if dropped is not None:
                    weights.mul_(dropped.kept(group, step))
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
    """The result of a part in another order, brought back and merged with that of earlier parts."""
    assert share.layout.back is not None
    old, old_level = (x[share.rows, share.heads].view(-1, x.shape[-1])[: len(share.layout.back)] for x in (values, lse))
    part, top = (x.flatten(0, 1).index_select(0, share.layout.back) for x in (out, level))
    if share.later:
        part, top = _merged(old, old_level, part, top)
    old.copy_(part)
    old_level.copy_(top)


def _merged(values: Tensor, lse: Tensor, part: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """Two parts over disjoint keys as one, in base 2."""
    both = torch.logaddexp2(lse, top)
    safe = both.clamp_min(lowest(both))
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
    x, empty = operands.in_tiles(plan.tiles), lse.isinf()
    tile, _ = plan.tiles
    level = whole_tiles((lse * LOG2E).masked_fill_(empty, lowest(lse))[..., None], tile)
    of_lse = whole_tiles(grad_lse.masked_fill(empty, 0)[..., None], tile)
    of_values, values = whole_tiles(grad_values, tile), whole_tiles(values, tile)
    learning = True, True, True, curve_learns, relative_learns, relative_learns, gates_learn, gates_learn
    levels = (None, None) if x.levels is None else [y[..., :1] for y in x.levels[:2]]
    biased = x.q, x.k, x.v, x.curve, x.query, x.relative, *levels
    grads = Gradients(
        *(
            torch.zeros_like(y) if y is not None and learns else x.q.new_empty(0)
            for y, learns in zip(biased, learning, strict=True)
        )
    )
    scratch = Scratch(x.q)
    for share in plan.shares(x.q.shape[0], x.q.shape[1], x.k.shape[1], x.q.device):
        scores = Scores(x, share, scratch)
        dropped = None if x.labels is None else Dropped(x.labels, share, scratch)
        tops, outs, slopes_lse, outers = (share.queries(y) for y in (level, values, of_lse, of_values))
        v, dq = share.keys(x.v), share.blank_queries(grads.q)
        dk, dv = (share.blank_keys(y) for y in (grads.k, grads.v))
        if share.layout.padding is not None:
            tops.view(-1)[share.layout.padding] = math.inf  # a copy: padding has no weight
        learned = scores.learned(grads)
        for group in share.layout.groups:
            for step in share.steps(group):
                weights = scores.weights(scores.of(group, step), pick(tops, step))
                weights.clamp_(max=1)  # scores of 1e10 round by more than 128 where a product is laid out otherwise
                outer = pick(outers, step)
                slope = scratch.buffer("slope", *weights.shape)
                kept = None if dropped is None else dropped.kept(group, step)
                averaging = weights if kept is None else torch.mul(weights, kept, out=slope)
                collect(dv, step, group.slots, averaging, outer)
                torch.bmm(outer, lanes(v, step, group.slots).mT, out=slope)
                if kept is not None:
                    slope.mul_(kept)
                # d loss / d logit = p (dO . v - delta): softmax takes away the average of dO . v; lse adds its own.
                average = scratch.buffer("average", *outer.shape)
                delta = torch.mul(outer, pick(outs, step), out=average).sum(-1, keepdim=True)
                slope.sub_(delta.sub_(pick(slopes_lse, step))).mul_(weights)
                new = torch.bmm(slope, lanes(scores.k, step, group.slots))
                put(dq, step, new.add_(pick(dq, step)) if share.again(group) else new)
                collect(dk, step, group.slots, slope, pick(scores.q, step))
                for part in learned:
                    part.gather(slope, group, step)
        share.add_queries(grads.q, dq)
        share.add_keys(grads.k, dk)
        share.add_keys(grads.v, dv)
        for part in learned:
            part.finish(grads)
    grads.q.mul_(operands.scale)
    grads.k.mul_(operands.scale)
    if operands.labels is not None:
        grads.v.div_(1 - operands.labels.probability)
    return grads
