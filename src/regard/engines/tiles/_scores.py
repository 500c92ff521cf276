"""The scores of a step: sums of log gates, products, biases by distance, masks."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from regard.engines.tiles._biases import Curve, Relative
from regard.engines.tiles._operands import LOG2E, Gradients, Operands, Scratch, Share, lanes, pick
from regard.engines.tiles.decay import Decay, faded
from regard.engines.tiles.layout import Group, Step


class Scores:
    """The scores of a share, step by step, in one buffer."""

    def __init__(self, operands: Operands, share: Share, scratch: Scratch) -> None:
        x, self.share, self.scratch = operands, share, scratch
        self.q, self.k, self.factor = share.queries(x.q), share.keys(x.k), x.scale * LOG2E
        self.hidden = None if x.hidden is None else share.keys(x.hidden)
        self.curve = None if x.curve is None else Curve(x, x.curve, share)
        self.relative: Relative | None = None
        if x.query is not None and x.relative is not None:
            self.relative = Relative(x, x.query, x.relative, share, scratch)
        self.decay = None if x.levels is None else Decay(x.levels, share)

    def of(self, group: Group, step: Step) -> Float[Tensor, "count tile lanes"]:
        """log2(e) times the logits, -inf where nothing may be seen."""
        tile, size = self.share.layout.sizes
        scores = self.scratch.take("scores", step.count, tile, group.slots * size)
        if self.decay is not None:
            self.decay.fill(scores, group, step)
        begun = 0 if self.decay is None else 1
        scores.baddbmm_(pick(self.q, step), lanes(self.k, step, group.slots).mT, beta=begun, alpha=self.factor)
        if self.curve is not None:
            self.curve.add(scores, group)
        if self.relative is not None:
            self.relative.add(scores, group, step)
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
        if self.decay is not None:
            faded(scores)
        return scores.exp2_()

    def learn(self, grads: Gradients) -> None:
        """Start to gather the gradients of the biases that learn; forget the others."""
        self.learning_curve = self.curve if len(grads.curve) else None
        self.learning_relative = self.relative if len(grads.relative) else None
        self.learning_decay = self.decay if len(grads.key_levels) else None
        if self.learning_curve is not None:
            self.learning_curve.learn(grads, self.share)
        if self.learning_relative is not None:
            self.learning_relative.learn(grads, self.share)
        if self.learning_decay is not None:
            self.learning_decay.learn(grads)

    def gather(self, slope: Float[Tensor, "count tile lanes"], group: Group, step: Step) -> None:
        """Take the slopes of a step's logits."""
        if self.learning_curve is not None:
            self.learning_curve.gather(slope, group)
        if self.learning_relative is not None:
            self.learning_relative.gather(slope, group, step)
        if self.learning_decay is not None:
            self.learning_decay.gather(slope, group, step)

    def finish(self, grads: Gradients) -> None:
        """Hand over what was gathered."""
        if self.learning_curve is not None:
            self.learning_curve.finish()
        if self.learning_relative is not None:
            self.learning_relative.finish(grads, self.share)
        if self.learning_decay is not None:
            self.learning_decay.finish(grads)
