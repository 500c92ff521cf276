"""Who runs the blocks, by name: one file each."""

from typing import Any, cast

from regard import specs
from regard.models.depth._base import Depth, Looped, Threads

PACKAGE = "regard.models.depth"

__all__ = ["PACKAGE", "Depth", "Looped", "Threads", "build_depth", "names"]


def names() -> list[str]:
    """Schemes that `depth` of a configuration may name."""
    return sorted(specs.files(PACKAGE))


def build_depth(spec: str) -> Depth:
    """Build a scheme from a specification such as `fixed`.

    Raises:
        ConfigError: an unknown name or option.
    """
    parsed = specs.parse(spec)
    options: dict[str, Any] = dict(parsed.options)
    return cast(Depth, specs.load("depth", parsed.name, specs.files(PACKAGE))(**options))
