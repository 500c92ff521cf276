"""How a memory joins a layer."""

from regard.core import Attention
from regard.errors import UnsupportedError
from regard.info import Heads
from regard.memory import Memory


def check_memory(memory: Memory, attention: Attention, heads: Heads) -> None:
    """Refuse a memory that the mechanism cannot read, or that compares what the mechanism does not.

    Raises:
        UnsupportedError: a mechanism without leading keys of the past; queries that are not compared with keys.
    """
    info, name = attention.info, type(memory).__name__
    if not (info.supports.prefix and heads.causal):
        attention.refuse("a memory (leading keys of the past)", "prefix")
    if memory.compares and (not {"q", "k"} <= set(info.reads) or heads.query_width != heads.key_dim):
        raise UnsupportedError(
            f"memory {name} compares the layer's queries with keys, and {info.title} reads {', '.join(info.reads)} "
            f"with query_dim={heads.query_width}, key_dim={heads.key_dim}; use memory='recent'"
        )
