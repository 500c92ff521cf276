"""Memories by name: one file each."""

from typing import TYPE_CHECKING, Any

from regard import specs

if TYPE_CHECKING:
    from regard.memory._base import Memory

PACKAGE = "regard.memory"


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
