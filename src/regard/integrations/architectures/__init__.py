"""Published networks that our models can be: one file each, named as `model_type` in its configuration names it.

A file `NAME.py` has the constant `NAME`, an `Architecture`; it is found by its name and imported when it is asked for.
"""

import importlib
from collections.abc import Iterator

from regard import specs
from regard.core.errors import UnsupportedError
from regard.integrations.architectures._base import Architecture, AttentionModule, Config, Form, class_names

__all__ = ["Architecture", "AttentionModule", "Config", "Form", "by_name", "class_names", "every", "names"]

PACKAGE = "regard.integrations.architectures"


def names() -> list[str]:
    """Every architecture, without importing any.

    Example:
        >>> "llama" in names()
        True
    """
    return sorted(specs.files(PACKAGE))


def by_name(name: object, where: str) -> Architecture:
    """The architecture of a configuration.

    Args:
        name: as the configuration says it.
        where: the file, for messages.

    Raises:
        UnsupportedError: one that no model of ours is.
    """
    if not isinstance(name, str) or name not in names():
        raise UnsupportedError(f"{where} holds the architecture {name!r}; regard loads {', '.join(names())}")
    architecture: Architecture = getattr(importlib.import_module(specs.files(PACKAGE)[name]), name.upper())
    assert architecture.name == name
    return architecture


def every() -> Iterator[Architecture]:
    """All of them, in the order of `names`."""
    return (by_name(name, PACKAGE) for name in names())
