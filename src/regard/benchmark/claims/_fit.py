"""The training that the small experiments of the claims share."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def fit(
    parameters: Iterable[nn.Parameter], loss: Callable[[], Tensor], *, steps: int, rate: float, points: int = 40
) -> tuple[list[float], list[float]]:
    """Adam with a cosine from `rate` to 0, on a fresh batch every step.

    Args:
        parameters: what is trained.
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
