"""Claims of the literature, measured: one file each, found by name without importing any of them."""

import dataclasses
import fnmatch
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import cast

from evidence.claims._base import (
    FORMAT,
    LEAST_SEEDS,
    About,
    Claim,
    Control,
    Curve,
    Finding,
    Observation,
    Plot,
    Revision,
)
from evidence.claims._measure import measure, sources
from regard import specs
from regard.core.errors import ConfigError, nearest

__all__ = [
    "FORMAT",
    "LEAST_SEEDS",
    "About",
    "Claim",
    "Control",
    "Curve",
    "Finding",
    "Observation",
    "Plot",
    "Revision",
    "build",
    "measure",
    "names",
    "outline",
    "sources",
]

PACKAGE = "evidence.claims"


def names(pattern: str = "*") -> list[str]:
    """The claims whose names match a shell-style pattern.

    Example:
        >>> names("dot*")
        ['dot_product_variance']
    """
    return [name for name in sorted(_files()) if fnmatch.fnmatchcase(name, pattern)]


@cache
def outline(name: str) -> About:
    """A claim in words, read without importing it.

    Raises:
        ConfigError: an unknown name.
    """
    if name not in _files():
        raise ConfigError(f"unknown claim {name!r}: {nearest(name, _files())}")
    return About.read(Path(__file__).with_name(f"{name}.py"))


def build(name: str, *, tiny: bool = False, settings: Mapping[str, object] | None = None) -> Claim:
    """A claim with its default settings.

    Args:
        name: of the claim.
        tiny: in the small form that checks the code and is no evidence.
        settings: fields of the claim that win over both.

    Raises:
        ConfigError: an unknown name or setting.
    """
    cls = cast("type[Claim]", specs.load("claim", name, _files()))
    values = {**(cls.tiny if tiny else {}), **(settings or {})}
    known = [field.name for field in dataclasses.fields(cast("type", cls))]
    for setting in values:
        if setting not in known:
            raise ConfigError(f"claim {name} has no setting {setting!r}: {nearest(setting, known)}")
    return cls(**values)


def _files() -> Mapping[str, str]:
    return {path.stem: f"{PACKAGE}.{path.stem}" for path in Path(__file__).parent.glob("[!_]*.py")}
