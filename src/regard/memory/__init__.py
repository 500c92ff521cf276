"""Memories by name: one file each."""

from typing import TYPE_CHECKING, Any, cast

from regard import specs
from regard.core.info import Heads

if TYPE_CHECKING:
    from regard.memory._base import Memory, MemoryState

PACKAGE = "regard.memory"

__all__ = ["PACKAGE", "Memory", "MemoryState", "build_memory", "memory_class", "names"]


def names() -> list[str]:
    """Registered memories."""
    return sorted(specs.files(PACKAGE))


def memory_class(name: str) -> "type[Memory]":
    """The class of a memory.

    Raises:
        ConfigError: an unknown name.
    """
    return cast("type[Memory]", specs.load("memory", name, specs.files(PACKAGE)))


def build_memory(spec: str, heads: Heads, dim: int) -> "Memory":
    """Build a memory from a specification such as `recent(length=128)`.

    Args:
        heads: the heads of the layer.
        dim: width of its hidden states.

    Raises:
        ConfigError: an unknown name or option.
    """
    parsed = specs.parse(spec)
    options: dict[str, Any] = dict(parsed.options)
    return memory_class(parsed.name)(heads, dim, **options)


def __getattr__(name: str) -> object:
    if name not in ("Memory", "MemoryState"):
        raise AttributeError(f"module 'regard.memory' has no attribute {name!r}")
    from regard.memory import _base

    return getattr(_base, name)
