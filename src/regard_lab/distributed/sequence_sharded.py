"""Training by processes that share the positions of every example, and the weights too."""

from regard_lab.distributed.sequence_ranks import SharedPositions
from regard_lab.distributed.sharded import Sharded


class ShardedSequences(SharedPositions, Sharded):
    """Processes that share positions, and of which each keeps a part of the weights of all.

    A sequence and a model that are both too much for one process: activations are those of a part of the positions, and
    weights, gradients and the optimizer's means 1 / count of the whole. The weights are cut over all processes, those
    of other sets too.
    """
