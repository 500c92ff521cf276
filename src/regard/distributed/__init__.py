"""Training by several processes, started by `torchrun`, on torch's own distributed engine."""

from regard.distributed.group import Group, joined, launched
from regard.distributed.replicas import Replicas

__all__ = ["Group", "Replicas", "joined", "launched"]
