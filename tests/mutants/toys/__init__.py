"""Small complete mechanisms, written for being read and broken: the parents of the mutants.

They use nothing of the engines, so that a mutant tests the suite and not an engine.
"""

from regard.core.attention import Attention
from tests.mutants.toys.dense import (
    ToyBranching,
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
    ToyBranching,
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
    "ToyBranching",
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
