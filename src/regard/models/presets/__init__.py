"""Published model shapes by name: one file each, found without importing any of them."""

import dataclasses
import importlib
import inspect
from collections.abc import Callable

from regard import specs
from regard.errors import ConfigError, nearest
from regard.models.config import ModelConfig

PACKAGE = "regard.models.presets"


def names() -> list[str]:
    """Registered presets.

    Example:
        >>> "gpt" in names()
        True
    """
    return sorted(specs.files(PACKAGE))


def function(name: str) -> Callable[..., ModelConfig]:
    """The preset's function: keyword arguments in, `ModelConfig` out.

    Raises:
        ConfigError: an unknown name.
    """
    known = specs.files(PACKAGE)
    if name not in known:
        raise ConfigError(f"unknown preset {name!r}: {nearest(name, known)}")
    return getattr(importlib.import_module(known[name]), name)


def build(name: str, **overrides: object) -> ModelConfig:
    """The configuration of a preset.

    Args:
        name: a preset.
        overrides: any field of `ModelConfig`; those that the preset takes as arguments reach it first, so that fields
            it derives from them (the MLP width of llama) follow.

    Raises:
        ConfigError: an unknown name, an unknown field, or values that do not fit together.

    Example:
        >>> build("gpt", layers=2, dim=64, heads=2).mlp_width
        256
    """
    make = function(name)
    known = [field.name for field in dataclasses.fields(ModelConfig)]
    for field in overrides:
        if field not in known:
            raise ConfigError(f"preset {name} has no field {field!r}: {nearest(field, known)}")
    arguments = inspect.signature(make).parameters
    config = make(**{field: value for field, value in overrides.items() if field in arguments})
    return dataclasses.replace(config, **{f: value for f, value in overrides.items() if f not in arguments})
