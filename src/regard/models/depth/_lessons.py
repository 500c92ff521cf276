"""What exits learn from: their answers, the exit that an oracle takes, and what a classifier makes of it, in logs."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from regard.core.precision import accumulation_dtype

Weights = Literal["uniform", "rising"]


class Answers(NamedTuple):
    """What every exit says, (batch, length, exits).

    nats: -LL^n, of the target; 0 where nothing counts. likeliest: its token. right: whether that is the target.
    counted: (batch, length), where there is a target.
    """

    nats: Tensor
    likeliest: Tensor
    right: Tensor
    counted: Tensor

    @classmethod
    def of(
        cls,
        logits: Sequence[Float[Tensor, "batch length vocab"]],
        targets: Int[Tensor, "batch length"],
        key_mask: Bool[Tensor, "batch length"] | None,
    ) -> "Answers":
        """From the logits of every exit; targets: negative where nothing counts."""
        counted = targets >= 0 if key_mask is None else (targets >= 0) & key_mask
        target = targets.clamp(min=0)
        nats = [
            F.cross_entropy(x.to(accumulation_dtype(x.dtype)).mT, target, reduction="none").masked_fill(~counted, 0)
            for x in logits
        ]
        likeliest = torch.stack([x.detach().argmax(-1) for x in logits], -1)
        return cls(torch.stack(nats, -1), likeliest, likeliest == targets[..., None], counted)

    def mean(self, x: Float[Tensor, "batch length"]) -> Float[Tensor, ""]:
        """Over the positions that count; 0 without any."""
        return x.masked_fill(~self.counted, 0).sum() / self.counted.sum().clamp(min=1)

    def below_last(self, weights: Sequence[float]) -> Float[Tensor, ""]:
        """The weighted mean of the losses of all exits but the last."""
        lower = sum(weight * self.mean(self.nats[..., at]) for at, weight in enumerate(weights[:-1]))
        return lower / sum(weights[:-1])  # type: ignore[return-value]


def exit_weights(kind: Weights, exits: int) -> list[float]:
    """w_n, which sum to 1: as many for each, or n / (1 + 2 + ...)."""
    parts = [1.0 if kind == "uniform" else float(n) for n in range(1, exits + 1)]
    return [part / sum(parts) for part in parts]


def smoothed(
    scores: Float[Tensor, "batch length exits"], sigma: float, counted: Bool[Tensor, "batch length"]
) -> Float[Tensor, "batch length exits"]:
    """sum over t' of exp(-(t - t')^2 / sigma) scores_t', over positions that count; sigma = 0: as they are."""
    scores = scores.masked_fill(~counted[..., None], 0)
    if not sigma:
        return scores
    slots = torch.arange(scores.shape[1], device=scores.device, dtype=scores.dtype)
    near = torch.exp(-((slots[:, None] - slots).square() / sigma))
    return near @ scores


def best(scores: Float[Tensor, "*rows exits"], penalty: float) -> Int[Tensor, " *rows"]:
    """The exit, from 0, of the largest scores_n - penalty n; the lowest of those that are equal."""
    depths = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    return (scores - penalty * depths).argmax(-1)  # argmax takes the first of equal ones


def log_geometric(logits: Float[Tensor, "*rows lower"]) -> Float[Tensor, "*rows exits"]:
    """log q of chi^n = sigmoid(logits_n): q(n) = chi^n prod_{n' < n} (1 - chi^n'), and what is left for the last."""
    passed = F.logsigmoid(-logits).cumsum(-1)
    before = F.pad(passed[..., :-1], (1, 0))
    return torch.cat([F.logsigmoid(logits) + before, passed[..., -1:]], -1)


def balanced(
    logits: Float[Tensor, "batch length lower"],
    agrees: Bool[Tensor, "batch length lower"],
    counted: Bool[Tensor, "batch length"],
) -> Float[Tensor, ""]:
    """-log of the probability of what is so, for every exit the mean over those that agree and those that do not.

    Each of the two counts half, however many they are; one that is empty not at all. Exits are averaged.
    """
    total = logits.new_zeros(logits.shape[-1])
    kinds = torch.zeros_like(total)
    for what, sign in ((agrees, 1), (~agrees, -1)):
        chosen = what & counted[..., None]
        count = chosen.sum((0, 1))
        nats = (-F.logsigmoid(sign * logits)).masked_fill(~chosen, 0).sum((0, 1))
        total = total + nats / count.clamp(min=1)
        kinds = kinds + (count > 0)
    return (total / kinds.clamp(min=1)).mean()
