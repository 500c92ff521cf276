"""The small trainings of claims: one optimizer and one schedule, so that only the model differs."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def fit(
    weights: Iterable[nn.Parameter],
    loss: Callable[[int], Tensor],
    *,
    steps: int,
    learning_rate: float = 3e-3,
    warmup: float = 0.1,
) -> None:
    """AdamW with a linear warm-up, a cosine to a tenth, and gradients of norm 1 at most.

    Args:
        weights: what is trained.
        loss: of the step of that number.
        steps: how many.
        learning_rate: at the end of the warm-up.
        warmup: share of the steps.
    """
    weights = [weight for weight in weights if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    rising = max(1, round(warmup * steps))

    def rate(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        return 0.55 + 0.45 * math.cos(math.pi * (step - rising) / max(1, steps - rising))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss(step).backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
