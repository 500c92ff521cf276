"""The words after a verb, read into the dataclass of its options."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import NoneType
from typing import Annotated, Literal, TypeVar, get_args

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    UnsupportedTypeAnnotationError,
)

from regard.core.errors import ConfigError, DataError

Options = TypeVar("Options")
Json = Annotated[bool, tyro.conf.arg(help="machine output on stdout")]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], tyro.conf.arg(help="auto: cuda, else mps, else cpu")]
Threads = Annotated[int, tyro.conf.arg(help="CPU threads; by default OMP_NUM_THREADS, else all cores")]
Seed = Annotated[int, tyro.conf.arg(help="of everything random")]
Trust = Annotated[
    bool, tyro.conf.arg(help="a folder may name its mechanism by import path, module:Class, which runs that module")
]
Ignore = Annotated[
    tuple[str, ...], tyro.conf.arg(metavar="KEY...", help="published weights: keys of config.json to leave out")
]
TYPES = ConstructorRegistry()
"""how the help names types: an option that may be None as what else it may be. The word None is still read."""


@TYPES.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | UnsupportedTypeAnnotationError | None:
    named = tyro.conf.DisallowNone
    if NoneType not in get_args(info.type) or named in info.markers:
        return None
    found = ConstructorRegistry.get_primitive_spec(replace(info, markers=info.markers | {named}))
    if isinstance(found, UnsupportedTypeAnnotationError):
        return found
    read, is_one, shown = found.instance_from_str, found.is_instance, found.str_from_instance
    return replace(
        found,
        instance_from_str=lambda words: None if words == ["None"] else read(words),
        is_instance=lambda value: value is None or is_one(value),
        str_from_instance=lambda value: ["None"] if value is None else shown(value),
    )


@contextmanager
def own_names() -> Iterator[None]:
    """Options of the data, in messages, are called as the commands call them that take no `--task.*`."""
    try:
        yield
    except (ConfigError, DataError) as error:
        said = str(error).replace("--task.test-", "--").replace("--task.", "--")
        if said == str(error):
            raise
        raise type(error)(said) from error


def read(kind: type[Options], words: Sequence[str], *, verb: str, description: str | None) -> Options:
    """The options of a verb; wrong words, and `--help`, end the program as tyro does.

    Args:
        kind: a dataclass whose docstrings describe the options.
        words: after the verb.
        verb: for messages.
        description: text of the help on the verb.
    """
    return tyro.cli(
        kind,
        args=list(words),
        prog=f"regard {verb}",
        description=description,
        registry=TYPES,
        config=(tyro.conf.FlagCreatePairsOff,),
    )
