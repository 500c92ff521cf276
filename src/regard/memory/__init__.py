"""Memories by name: one file each."""

from typing import TYPE_CHECKING, Any

from regard import specs

if TYPE_CHECKING:
    from regard.memory._base import Memory

PACKAGE = "regard.memory"

__all__ = ["PACKAGE", "Memory", "build_memory", "names"]


def names() -> list[str]:
    """Registered memories."""
    return sorted(specs.files(PACKAGE))


def build_memory(spec: str) -> "Memory":
    """Build a memory from a specification such as `recent(length=128)`.

    Raises:
        ConfigError: an unknown name or option.
    """
    parsed = specs.parse(spec)
    cls = specs.load("memory", parsed.name, specs.files(PACKAGE))
    specs.check_options("memory", parsed.name, cls, parsed.options)
    options: dict[str, Any] = dict(parsed.options)
    return cls(**options)


def __getattr__(name: str) -> object:
    if name != "Memory":
        raise AttributeError(f"module 'regard.memory' has no attribute {name!r}")
    from regard.memory._base import Memory

    return Memory
