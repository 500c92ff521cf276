"""Blocks by name: one file each."""

from regard import specs
from regard.models.blocks._base import Block

PACKAGE = "regard.models.blocks"

__all__ = ["PACKAGE", "Block", "block_class", "names"]


_BLOCKS = specs.Registry[Block]("block", PACKAGE)
names, block_class = _BLOCKS.names, _BLOCKS.find
