"""Training by several processes, started by `torchrun`, on torch's own distributed engine."""

from regard.distributed.group import Group
from regard_lab.distributed.replicas import Replicas
from regard_lab.distributed.sequence_ranks import SequenceParts
from regard_lab.training.parallel_config import ParallelConfig
from regard_lab.training.ranks import Ranks

__all__ = ["Replicas", "SequenceParts", "ranks_for"]


def ranks_for(group: Group, parallel: ParallelConfig) -> Ranks:
    """What `train` and `resume` take as `ranks`.

    Args:
        group: the processes that `torchrun` started.
        parallel: what they divide; by default examples alone.

    Raises:
        ConfigError: a number of processes that does not fit.
    """
    return SequenceParts(group, parallel.sequence) if parallel.sequence > 1 else Replicas(group)
