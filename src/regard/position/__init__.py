"""Position schemes by name: one file each."""

from typing import TYPE_CHECKING

from regard import specs

if TYPE_CHECKING:
    from regard.core.info import Heads
    from regard.position._base import Position

PACKAGE = "regard.position"

__all__ = ["PACKAGE", "Position", "build_position", "names", "position_class"]


_SCHEMES: "specs.Registry[Position]" = specs.Registry("position", PACKAGE)
names, position_class = _SCHEMES.names, _SCHEMES.find


def build_position(spec: str, heads: "Heads", dim: int) -> "Position":
    """Build a position scheme from a specification such as `rotary(fraction=0.5)`.

    Raises:
        ConfigError: an unknown name or option.
    """
    parsed = specs.parse(spec)
    cls = position_class(parsed.name)
    specs.check_options("position", parsed.name, cls, parsed.options)
    return _SCHEMES.build(spec, heads, dim)


def __getattr__(name: str) -> object:
    if name != "Position":
        raise AttributeError(f"module 'regard.position' has no attribute {name!r}")
    from regard.position._base import Position

    return Position
