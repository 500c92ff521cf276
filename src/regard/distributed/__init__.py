"""Training by several processes, started by `torchrun`, on torch's own distributed engine."""

from regard.distributed.chosen import ranks_for
from regard.distributed.group import Group, joined, launched
from regard.distributed.replicas import Replicas
from regard.distributed.sequence import SequenceParts, sequence_parallel

__all__ = ["Group", "Replicas", "SequenceParts", "joined", "launched", "ranks_for", "sequence_parallel"]
