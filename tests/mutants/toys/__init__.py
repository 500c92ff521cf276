"""Small complete mechanisms, written for being read and broken: the parents of the mutants.

They use nothing of the engines, so that a mutant tests the suite and not an engine.
"""

from regard.core import Attention
from tests.mutants.toys.dense import (
    ToyBuckets,
    ToyCodes,
    ToyDense,
    ToyGated,
    ToyTable,
    ToyWindow,
    allowed_pairs,
    expanded,
    positions,
)
from tests.mutants.toys.kernel import ToyDecay, ToyFeatures, ToyKernel, ToyMarked, ToyMaximum, ToyProjection

TOYS: tuple[type[Attention], ...] = (
    ToyDense,
    ToyWindow,
    ToyKernel,
    ToyFeatures,
    ToyCodes,
    ToyBuckets,
    ToyTable,
    ToyMarked,
    ToyProjection,
    ToyMaximum,
    ToyGated,
    ToyDecay,
)

__all__ = [
    "TOYS",
    "ToyBuckets",
    "ToyCodes",
    "ToyDecay",
    "ToyDense",
    "ToyFeatures",
    "ToyGated",
    "ToyKernel",
    "ToyMarked",
    "ToyMaximum",
    "ToyProjection",
    "ToyTable",
    "ToyWindow",
    "allowed_pairs",
    "expanded",
    "positions",
]
