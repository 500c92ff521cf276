"""Sequence parallel training: every process has a part of the positions of every sequence."""

from regard.distributed.sequence.attended import attended, way_of
from regard.distributed.sequence.context import sequence_parallel
from regard.distributed.sequence.parts import Parts
from regard.distributed.sequence.ranks import SequenceParts

__all__ = ["Parts", "SequenceParts", "attended", "sequence_parallel", "way_of"]
