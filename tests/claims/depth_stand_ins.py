"""What stands in the tests of claims on depth in the place of long trainings."""

from collections.abc import Callable
from typing import Any

import numpy as np

from evidence.claims.exit_guarantee import ExitGuarantee, naive
from evidence.claims.ponder_difficulty import Answered
from evidence.claims.spans_by_layer import Learned
from evidence.claims.three_confidences import REVERSED, Compared
from regard_lab.benchmark.exits import Measured
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


def looks(*spans: float, nats: list[float] = OVER) -> dict[str, Callable[..., object]]:
    """Spans of layers after training on letters; those of the tasks are as they must be."""
    return {
        "learned": lambda self, steps, seed: Learned([one + 0.001 * seed for one in spans], 2.5, nats),
        "settled": lambda self, first, seed: [1.0, 9.0] if first == "near" else [9.0, 1.0],
    }


def saves(
    gap: float, saturation: float, classifier: float, nats: list[float] = OVER
) -> dict[str, Callable[..., object]]:
    """Blocks that calibrated confidences take, at every risk."""

    def compared(self: Any, steps: int, seed: int) -> Compared:
        del steps
        found = zip((*self.confidences, REVERSED), (gap + 0.001 * seed, saturation, classifier, 4.0), strict=True)
        return Compared({name: [blocks] * len(self.risks) for name, blocks in found}, 1.0, (0.0, 1.0), {}, nats)

    return {"compared": compared}


def unseen(nats: list[float] = OVER, **lost: float) -> dict[str, Callable[..., object]]:
    """Bits of decoders of letters, 3 with all keys, by the key that nobody sees; that of the letter before costs 1."""

    def trained(self: Any, mechanism: str, steps: int, seed: int) -> tuple[float, list[float]]:
        del steps
        names = {self.own: "own", self.before: "before"}
        return 3.0 + {"before": 1.0, **lost}.get(names.get(mechanism, ""), 0.0) + 0.001 * seed, nats

    return {"trained": trained}
