"""Who runs the blocks, by name: one file each."""

from regard import specs
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


_DEPTHS = specs.Registry[Depth]("depth", PACKAGE)
names, depth_class, build_depth = _DEPTHS.names, _DEPTHS.find, _DEPTHS.build
