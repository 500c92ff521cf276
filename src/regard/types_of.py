"""Values compared with their types, and errors that say which one does not fit. Imports no torch."""

import inspect
import math
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache, wraps
from typing import Any, Literal, ParamSpec, TypeVar

from regard.errors import ConfigError, RegardError, kind_of, nearest, no_size, ours, out_of_memory, unknown

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


@cache
def hints(cls: type) -> dict[str, Any]:
    """The types of a class's annotated attributes, by name."""
    return typing.get_type_hints(cls, include_extras=True)


def validate(label: str, name: str, value: object, hint: Any) -> None:
    """Compare a value with its type, choices and bounds. Numbers are Python's own, finite, and whole ones of 64 bits.

    Raises:
        ConfigError: it does not fit; the message says what would.
    """
    import pydantic

    try:
        _adapter(hint).validate_python(value, strict=True)
    except pydantic.ValidationError as error:
        choices = [choice for part in _alternatives(hint) for choice in part]
        if choices and isinstance(value, str):
            why = nearest(value, [str(choice) for choice in choices])
        else:
            why = "; ".join(dict.fromkeys(problem["msg"] for problem in error.errors()))
        shown = kind_of(value) if hasattr(value, "shape") else repr(value)
        raise ConfigError(f"{label}: option {name}={shown} is not valid: {why}") from error
    why = _problem(value)
    if why is not None:
        raise ConfigError(f"{label}: option {name}={value!r} is not valid: {why}")


def typed(call: Callable[_Arguments, _Answer]) -> Callable[_Arguments, _Answer]:
    """A function, or the `__post_init__` of a dataclass, that names the value of another type over which it stumbled.

    Types are looked at once something went wrong, so that a call with the right ones costs nothing more.
    """
    label = call.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__")

    @wraps(call)
    def named(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Answer:
        try:
            return call(*args, **kwargs)
        except (TypeError, AttributeError, ValueError, RuntimeError, IndexError, KeyError) as error:
            if not isinstance(error, RegardError) and (no_size(error) or not out_of_memory(error)):
                _explain(label, call, args, kwargs, error)
            raise

    return named


def typed_fields(cls: type[_Answer]) -> type[_Answer]:
    """A dataclass that names a field which it does not have, as `typed` does an argument."""
    cls.__init__ = typed(cls.__init__)
    return cls


def _explain(
    label: str, call: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object], error: Exception
) -> None:
    """Raise what is wrong with the types of the arguments of a call, or with the fields of a dataclass; if anything."""
    if call.__name__ == "__post_init__":
        label, given, types = type(args[0]).__name__, vars(args[0]), hints(type(args[0]))
    else:
        signature = inspect.signature(call)
        known = [name for name in signature.parameters if name != "self"]
        any_name = inspect.Parameter.VAR_KEYWORD in (each.kind for each in signature.parameters.values())
        for name in kwargs:
            if name not in known and (not any_name or ours(name, known)):
                raise unknown(label, name, known) from error
        try:
            given = signature.bind_partial(*args, **kwargs).arguments
        except TypeError as wrong:
            raise ConfigError(f"{label}: {wrong}; give them by name: {', '.join(known)}") from error
        types = {}
        with suppress(NameError):  # a type that is imported for type checkers alone
            types = typing.get_type_hints(call, include_extras=True)
    for name, value in given.items():
        try:
            validate(label, name, value, types.get(name, object))
        except ConfigError as found:
            raise found from error
        except Exception:
            continue  # a type that no value can be compared with, such as a protocol


def _problem(value: object) -> str | None:
    """Why a number in a value of the right type cannot be computed with, written down and read back."""
    if isinstance(value, Mapping):
        return next((why for part in value.values() if (why := _problem(part))), None)
    if isinstance(value, tuple | list):
        return next((why for part in value if (why := _problem(part))), None)
    kind = type(value)
    if kind is float and not math.isfinite(typing.cast(float, value)):
        return "Input should be a finite number"
    if kind is int and not -(1 << 63) <= typing.cast(int, value) < 1 << 63:
        return "Input should be an integer of 64 bits"
    if kind not in (int, float, bool) and hasattr(kind, "__float__") and not getattr(value, "ndim", 0):  # no array
        return f"Input should be a plain number, not {kind.__module__}.{kind.__qualname__}"
    return None


def _alternatives(hint: Any) -> Iterator[tuple[object, ...]]:
    """The choices of every Literal in a type."""
    if typing.get_origin(hint) is Literal:
        yield typing.get_args(hint)
        return
    for part in typing.get_args(hint):
        yield from _alternatives(part)


@cache
def _adapter(hint: Any) -> Any:
    import pydantic

    if isinstance(hint, type) and is_dataclass(hint):
        return pydantic.TypeAdapter(typing.cast(Any, pydantic.InstanceOf)[hint])
    return pydantic.TypeAdapter(hint, config=pydantic.ConfigDict(arbitrary_types_allowed=True))
