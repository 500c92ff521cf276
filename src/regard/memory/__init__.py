"""Memories by name: one file each."""

from typing import TYPE_CHECKING

from regard import specs

if TYPE_CHECKING:
    from regard.memory._base import Memory, MemoryState

PACKAGE = "regard.memory"

__all__ = ["PACKAGE", "Memory", "MemoryState", "build_memory", "memory_class", "names"]


_MEMORIES: "specs.Registry[Memory]" = specs.Registry("memory", PACKAGE)
names, memory_class, build_memory = _MEMORIES.names, _MEMORIES.find, _MEMORIES.build


def __getattr__(name: str) -> object:
    if name not in ("Memory", "MemoryState"):
        raise AttributeError(f"module 'regard.memory' has no attribute {name!r}")
    from regard.memory import _base

    return getattr(_base, name)
