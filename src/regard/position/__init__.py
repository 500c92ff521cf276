"""Position schemes by name: one file each."""

from typing import TYPE_CHECKING, Any

from regard import specs

if TYPE_CHECKING:
    from regard.core.info import Heads
    from regard.position._base import Position

PACKAGE = "regard.position"

__all__ = ["PACKAGE", "Position", "build_position", "names", "position_class"]


def names() -> list[str]:
    """Registered position schemes."""
    return sorted(specs.files(PACKAGE))


def position_class(name: str) -> "type[Position]":
    """The class of a scheme.

    Raises:
        ConfigError: an unknown name.
    """
    return specs.load("position", name, specs.files(PACKAGE))


def build_position(spec: str, heads: "Heads", dim: int) -> "Position":
    """Build a position scheme from a specification such as `rotary(fraction=0.5)`.

    Raises:
        ConfigError: an unknown name or option.
    """
    parsed = specs.parse(spec)
    cls = position_class(parsed.name)
    specs.check_options("position", parsed.name, cls, parsed.options)
    options: dict[str, Any] = dict(parsed.options)
    return cls(heads, dim, **options)


def __getattr__(name: str) -> object:
    if name != "Position":
        raise AttributeError(f"module 'regard.position' has no attribute {name!r}")
    from regard.position._base import Position

    return Position
