"""Sequence parallelism: every process has a part of the positions of every sequence."""

from regard.distributed.sequence.attended import attended, way_of
from regard.distributed.sequence.context import sequence_parallel
from regard.distributed.sequence.parts import Parts

__all__ = ["Parts", "attended", "sequence_parallel", "way_of"]
