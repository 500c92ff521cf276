"""What stands in the tests of claims on depth in the place of long trainings."""

from collections.abc import Callable
from typing import Any

import numpy as np

from regard.benchmark.exits import Measured
from regard.claims.exit_guarantee import ExitGuarantee, naive
from regard.claims.ponder_difficulty import Answered
from tests.claims.memory_stand_ins import OVER

RISKS = (0.0, 0.0, 0.01, 0.02, 0.13, 0.16, 0.2, 0.3, 0.5)
"""by threshold, around the one of 0.1 that is allowed"""


def table(self: ExitGuarantee, seed: int) -> Measured:
    """Losses of passages of which the last ones are easier."""
    del seed
    items, blocks = self.pool, np.linspace(self.layers, 1, len(RISKS))
    losses = (np.arange(items)[:, None] < items * np.array(RISKS)).astype(np.float64)
    none = np.zeros_like(losses)
    exits = np.zeros((len(RISKS), self.layers), np.int64)
    return Measured(self.thresholds, losses, none + blocks, none, none, exits, none[:, 0], none[:, 0])


CALIBRATED: dict[str, Callable[..., Any]] = {"measured": table}
NAIVE = CALIBRATED | {"certified": lambda self, got: naive(got.risks, got.risk)}
"""a calibration that takes what looked good"""


def ponders(*steps: float, nats: list[float] = OVER) -> dict[str, Callable[..., object]]:
    """Steps by the number of look-ups, where it matters."""

    def answered(self: object, depth: str, seed: int, *, matter: bool = True) -> Answered:
        del self
        right = [1.0, 1.0, 0.5] if depth.startswith("universal(steps=1,") else [1.0, 1.0, 1.0]
        return Answered([one + 0.001 * seed for one in steps] if matter else [1.0, 1.0, 1.0], right, nats)

    return {"answered": answered}


def leave(bits: float) -> dict[str, Callable[..., object]]:
    """Bits of exits that decide, where those of a fixed depth, hardly trained, lose four."""
    fixed = [(1e4, 4.1), (2e4, 4.0)]
    return {"by_threshold": lambda self, model, new, seed, **costs: ([(2e4, bits + 0.001 * seed)], fixed, [(2e4, 4.2)])}
