"""What stands in the tests of claims on gated units in the place of trainings."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from evidence.claims._units import Course

AFTER: Mapping[str, Callable[..., Any]] = {"across": lambda self, model, new: 0.1}
"""the chunks before are read, also by what was never trained"""


def elsewhere(change: float = 0.0, **lost: float) -> Mapping[str, Callable[..., Any]]:
    """Models that need no training, and what they lose at other lengths than that of it."""

    def bits(self: Any, model: str, seed: int) -> list[float]:
        loss = lost.get(model.partition("(")[0], 0.0) * (1 + seed / 1e4)
        return [1 + loss * (length != self.lengths[1]) for length in self.lengths]

    return {
        "trained": lambda self, spec, seed: (spec, Course(1.0, change, ([1], [1.0]))),
        "given": lambda self, model, spec, seed: spec,
        "bits": bits,
    }


def letters(change: float = 0.0, **worse: float) -> Callable[..., tuple[None, Course]]:
    """Losses of models of letters, by mechanism and number of layers; wide ones lose less."""

    def learned(config: Any, new: Tensor, **_: object) -> tuple[None, Course]:
        name = config.attention[0].partition("(")[0]
        bits = 2 + config.seed / 1e4 + worse.get(f"{name}_{config.layers}", 0.0) - 0.1 * (config.dim > 32)
        return None, Course(bits, change, ([1], [bits]))

    return learned
