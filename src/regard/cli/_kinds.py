"""The kinds of registered names: mechanisms, and the parts of models around them."""

from collections.abc import Mapping

from regard import catalog, memory, position, specs
from regard.memory import caches
from regard.models import presets

MECHANISM, PRESET = "mechanism", "preset"
PACKAGES: Mapping[str, str] = {
    "position": position.PACKAGE,
    "memory": memory.PACKAGE,
    "cache": caches.PACKAGE,
    "block": "regard.models.blocks",
    "depth": "regard.models.depth",
}
"""kind -> the package with a file for every name; named where importing it would import torch"""
KINDS = (MECHANISM, *PACKAGES, PRESET)
PLURALS: Mapping[str, str] = {kind: "memories" if kind == "memory" else f"{kind}s" for kind in KINDS}


def names(kind: str) -> list[str]:
    """The registered names of a kind."""
    if kind == MECHANISM:
        return catalog.names()
    return presets.names() if kind == PRESET else sorted(specs.files(PACKAGES[kind]))
