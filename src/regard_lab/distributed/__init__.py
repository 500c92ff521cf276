"""Training by several processes, started by `torchrun`, on torch's own distributed engine."""

from regard_lab.distributed.chosen import ranks_for
from regard_lab.distributed.replicas import Replicas
from regard_lab.distributed.sequence_ranks import SequenceParts

__all__ = ["Replicas", "SequenceParts", "ranks_for"]
