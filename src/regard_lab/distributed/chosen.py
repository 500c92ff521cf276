"""The kind of processes that was asked for."""

from regard.distributed.group import Group
from regard_lab.distributed.replicas import Replicas
from regard_lab.distributed.sequence_ranks import SequenceParts
from regard_lab.training.parallel_config import ParallelConfig
from regard_lab.training.ranks import Ranks


def ranks_for(group: Group, parallel: ParallelConfig) -> Ranks:
    """What `train` and `resume` take as `ranks`.

    Args:
        group: the processes that `torchrun` started.
        parallel: what they divide; by default examples alone.

    Raises:
        ConfigError: a number of processes that does not fit.
    """
    if parallel.shard:  # with torch's sharding and checkpoints, which others do not need
        if parallel.sequence > 1:
            from regard_lab.distributed.sequence_sharded import ShardedSequences

            return ShardedSequences(group, parallel.sequence)
        from regard_lab.distributed.sharded import Sharded

        return Sharded(group)
    if parallel.sequence > 1:
        return SequenceParts(group, parallel.sequence)
    return Replicas(group)
