"""Processes that share the positions of a sequence, on torch's own distributed engine."""

from regard.distributed.group import Group, joined, launched
from regard.distributed.sequence import sequence_parallel

__all__ = ["Group", "joined", "launched", "sequence_parallel"]
