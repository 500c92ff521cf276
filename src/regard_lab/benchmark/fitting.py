"""The trainings that small measurements share, so that only the model differs."""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn


def fit(
    parameters: Iterable[nn.Parameter], loss: Callable[[], Tensor], *, steps: int, rate: float, points: int = 40
) -> tuple[list[float], list[float]]:
    """For a layer or less: Adam with a cosine from `rate` to 0, on a fresh batch every step.

    Args:
        parameters: the ones that are trained.
        loss: draws a batch and gives its loss.
        steps: how many.
        rate: the first learning rate.
        points: of the curve.

    Returns:
        Steps and the mean loss since the step before.
    """
    weights = list(parameters)
    optimizer = torch.optim.Adam(weights, lr=rate)
    every = max(1, steps // points)
    at: list[float] = []
    means: list[float] = []
    total = 0.0
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 + math.cos(math.pi * (step - 1) / steps)) / 2
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        total += float(value.detach())
        if step % every == 0:
            at.append(float(step))
            means.append(total / every)
            total = 0.0
    return at, means


def train(
    weights: Iterable[nn.Parameter],
    loss: Callable[[int], Tensor],
    *,
    steps: int,
    learning_rate: float = 3e-3,
    warmup: float = 0.1,
    last: float = 0.1,
) -> None:
    """For Transformers: AdamW with a linear warm-up, a cosine to a tenth, and gradients of norm 1 at most.

    Args:
        weights: the ones that are trained.
        loss: of the step of that number.
        steps: how many.
        learning_rate: at the end of the warm-up.
        warmup: share of the steps.
        last: share of the learning rate that is left at the end; at 0 nothing changes any more.
    """
    weights = [weight for weight in weights if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    rising = max(1, round(warmup * steps))

    def rate(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        turn = math.cos(math.pi * (step - rising) / max(1, steps - rising))
        return (1 + last) / 2 + (1 - last) / 2 * turn

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss(step).backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()


def averages(losses: Sequence[float], points: int = 20) -> tuple[list[int], list[float]]:
    """A curve of a training: steps, and the mean loss since the step before.

    Example:
        >>> averages([4.0, 2.0, 1.0, 1.0, 7.0], points=2)
        ([2, 4], [3.0, 1.0])
    """
    every = max(1, len(losses) // points)
    ends = list(range(every, len(losses) + 1, every))
    return ends, [sum(losses[end - every : end]) / every for end in ends]
