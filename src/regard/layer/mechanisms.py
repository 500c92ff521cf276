"""How a mechanism joins a layer."""

from regard.core import Attention
from regard.errors import ConfigError
from regard.info import Heads

_SERVED = ("count", "key_dim", "value_width", "query_width", "kv_heads", "causal", "max_length", "dropout")
"""what a shared mechanism must have been built for; its seed is its own"""


def check_mechanism(attention: Attention, heads: Heads, *, cross: bool) -> None:
    """Refuse a shared mechanism that was built for another layer, and a layer that the mechanism cannot serve.

    Raises:
        ConfigError: other heads; fewer heads of keys where queries are the keys.
        UnsupportedError: cross-attention.
    """
    built = attention.heads
    if unlike := [fact for fact in _SERVED if getattr(built, fact) != getattr(heads, fact)]:
        theirs, wanted = (", ".join(f"{fact}={getattr(x, fact)}" for fact in unlike) for x in (built, heads))
        raise ConfigError(f"the shared mechanism serves {theirs}, this layer needs {wanted}")
    if cross and not attention.info.supports.cross:
        attention.refuse("cross-attention (context_dim)", "cross")
    if attention.info.shares_query_key and heads.kv_heads != heads.count:
        raise ConfigError(f"{attention.info.title} uses queries as keys, so kv_heads must equal heads={heads.count}")
