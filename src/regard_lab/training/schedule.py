"""The learning rate as a pure function of the step."""

import math
from typing import Literal

from regard.core.errors import ConfigError

Schedule = Literal["cosine", "linear", "constant", "inverse_sqrt", "noam"]


def learning_rate(
    step: int,
    *,
    peak: float,
    steps: int,
    warmup: int = 0,
    schedule: Schedule = "cosine",
    minimum_ratio: float = 0.0,
    dim: int | None = None,
) -> float:
    """Linear warm-up to the peak, then the chosen decay.

    With w = warmup, T = steps, r = minimum_ratio and progress p = (step - w) / (T - w): peak (step + 1) / (w + 1) while
    step < w, so that step w is the first at the peak; then peak times

        cosine         r + (1 - r) (1 + cos(pi p)) / 2
        linear         r + (1 - r) (1 - p)
        constant       1
        inverse_sqrt   max(r, sqrt((w + 1) / (step + 1)))

    `noam` is the published formula instead, with s = step + 1 and D = dim: peak D^-0.5 min(s^-0.5, s w^-1.5). There the
    peak is a factor, 1 in the paper; the highest rate is peak (D w)^-0.5, at s = w.

    Args:
        step: the step about to be taken, from 0.
        peak: the highest rate.
        steps: length of the run.
        warmup: steps before the peak.
        schedule: the decay after the warm-up.
        minimum_ratio: the floor, as a share of the peak.
        dim: width of the model, for `noam`.

    Returns:
        The rate for this step.

    Raises:
        ConfigError: `noam` without dim or without warm-up.

    Example:
        >>> [learning_rate(s, peak=1.0, steps=4, warmup=1, schedule="linear") for s in range(4)]
        [0.5, 1.0, 0.6666666666666667, 0.33333333333333337]

    Source: cosine: Loshchilov & Hutter 2017, SGDR, Eq. 5 (one cycle); inverse square root and noam: Vaswani et al.
    2017, Eq. 3.
    """
    if schedule == "noam":
        if dim is None or warmup < 1:
            raise ConfigError(f"schedule noam needs the model's dim and a warm-up, got dim={dim} and warmup={warmup}")
        return peak * dim**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup**-1.5)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if schedule == "constant":
        return peak
    if schedule == "inverse_sqrt":
        return peak * max(minimum_ratio, math.sqrt((warmup + 1) / (step + 1)))
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    remaining = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return peak * (minimum_ratio + (1 - minimum_ratio) * remaining)
