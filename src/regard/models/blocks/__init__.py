"""Blocks by name: one file each."""

from typing import cast

from regard import specs
from regard.models.blocks._base import Block

PACKAGE = "regard.models.blocks"

__all__ = ["PACKAGE", "Block", "block_class", "names"]


def names() -> list[str]:
    """Blocks that `block` of a configuration may name."""
    return sorted(specs.files(PACKAGE))


def block_class(name: str) -> type[Block]:
    """The class of a block.

    Raises:
        ConfigError: an unknown name.
    """
    return cast("type[Block]", specs.load("block", name, specs.files(PACKAGE)))
