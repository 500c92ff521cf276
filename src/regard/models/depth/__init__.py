"""Who runs the blocks, by name: one file each."""

from typing import Any, cast

from regard import specs
from regard.models.block_config import BlockConfig
from regard.models.depth._base import Depth, Looped, Readout, Threads, Tokens
from regard.models.depth._leaving import Begin, Leaving, Notes

PACKAGE = "regard.models.depth"

__all__ = [
    "PACKAGE",
    "Begin",
    "Depth",
    "Leaving",
    "Looped",
    "Notes",
    "Readout",
    "Threads",
    "Tokens",
    "build_depth",
    "depth_class",
    "names",
]


def names() -> list[str]:
    """Schemes that `depth` of a configuration may name."""
    return sorted(specs.files(PACKAGE))


def depth_class(name: str) -> type[Depth]:
    """The class of a scheme.

    Raises:
        ConfigError: an unknown name.
    """
    return cast("type[Depth]", specs.load("depth", name, specs.files(PACKAGE)))


def build_depth(spec: str, config: BlockConfig) -> Depth:
    """Build a scheme from a specification such as `universal(steps=8)`.

    Args:
        config: shape of the model.

    Raises:
        ConfigError: an unknown name or option.
    """
    parsed = specs.parse(spec)
    options: dict[str, Any] = dict(parsed.options)
    return depth_class(parsed.name)(config, **options)
