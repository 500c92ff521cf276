"""Published model shapes by name: one file each, found without importing any of them."""

import dataclasses
import importlib
import inspect
import typing
from collections.abc import Callable
from typing import Any

from regard import specs
from regard.errors import ConfigError, nearest

PACKAGE = "regard.models.presets"


def names() -> list[str]:
    """Registered presets.

    Example:
        >>> "gpt" in names()
        True
    """
    return sorted(specs.files(PACKAGE))


def function(name: str) -> Callable[..., Any]:
    """The preset's function: keyword arguments in, a configuration of the `kind` out.

    Raises:
        ConfigError: an unknown name.
    """
    known = specs.files(PACKAGE)
    if name not in known:
        raise ConfigError(f"unknown preset {name!r}: {nearest(name, known)}")
    return getattr(importlib.import_module(known[name]), name)


def kind(name: str) -> type[Any]:
    """The kind of configuration that a preset is, which says what model is built from it.

    Raises:
        ConfigError: an unknown name.

    Example:
        >>> kind("gpt").__name__, kind("bert").__name__, kind("t5").__name__
        ('ModelConfig', 'EncoderConfig', 'EncoderDecoderConfig')
    """
    return typing.get_type_hints(function(name))["return"]


def build(name: str, **overrides: object) -> Any:
    """The configuration of a preset.

    Args:
        name: a preset.
        overrides: any argument of the preset and any field of its `kind`; arguments reach the preset, so that fields it
            derives from them (the MLP width of llama) follow.

    Raises:
        ConfigError: an unknown name, an unknown field, or values that do not fit together.

    Example:
        >>> build("gpt", layers=2, dim=64, heads=2).mlp_width
        256
    """
    make = function(name)
    arguments = inspect.signature(make).parameters
    known = [*arguments, *(field.name for field in dataclasses.fields(kind(name)))]
    for field in overrides:
        if field not in known:
            raise ConfigError(f"preset {name} has no field {field!r}: {nearest(field, known)}")
    config = make(**{field: value for field, value in overrides.items() if field in arguments})
    return dataclasses.replace(config, **{f: value for f, value in overrides.items() if f not in arguments})
