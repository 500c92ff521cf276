"""Values compared with their types, and errors that say which one does not fit. Imports no torch."""

import inspect
import math
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MinLen, MultipleOf

from regard.core.errors import ConfigError, RegardError, kind_of, nearest, no_size, ours, out_of_memory, unknown

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
    why = _problem(value) or _mismatch(value, hint)
    if why is None:
        return
    choices = [choice for part in _alternatives(hint) for choice in part]
    if choices and isinstance(value, str):
        why = nearest(value, [str(choice) for choice in choices])
    shown = kind_of(value) if hasattr(value, "shape") else repr(value)
    raise ConfigError(f"{label}: option {name}={shown} is not valid: {why}")


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


def _mismatch(value: object, hint: Any) -> str | None:
    """What a value of this type should be, if it is none. Whole numbers are numbers; nothing else is converted."""
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if kind is Annotated:
        why = _mismatch(value, parts[0])
        bounds = (limit for each in parts[1:] for limit in _bounds(each))
        return why or next((said for holds, said in bounds if value is not None and not holds(value)), None)
    if kind in (Union, UnionType):
        found = [_mismatch(value, part) for part in parts]
        return None if None in found else "; ".join(dict.fromkeys(why for why in found if why))
    if kind is Literal:
        same = any(type(value) is type(part) and value == part for part in parts)
        return None if same else f"Input should be {' or '.join(map(repr, parts))}"
    if kind is tuple:
        return _within(value, tuple, parts)
    if kind is not None and isinstance(kind, type) and issubclass(kind, Collection):
        return _within(value, kind, parts)
    if hint in (Any, object):
        return None
    if hint in (None, NoneType):
        return None if value is None else "Input should be None"
    if hint in _PLAIN:
        kinds, called = _PLAIN[hint]
        return None if type(value) in kinds or (isinstance(value, kinds) and type(value) is not bool) else called
    if (kind or hint) is Callable:
        return None if callable(value) else "Input should be callable"
    if kind is type:
        return None if isinstance(value, type) else "Input should be a class"
    return None if isinstance(value, kind or hint) else f"Input should be an instance of {(kind or hint).__name__}"


_PLAIN: dict[object, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "Input should be a valid boolean"),
    int: ((int,), "Input should be a valid integer"),
    float: ((float, int), "Input should be a valid number"),
    str: ((str,), "Input should be a valid string"),
}


def _within(value: object, kind: type, parts: tuple[Any, ...]) -> str | None:
    """Of a collection and its items."""
    if not isinstance(value, kind) or (isinstance(value, str | bytes) and kind not in (str, bytes)):
        return f"Input should be a valid {kind.__name__.lower()}"
    if isinstance(value, Mapping):
        pairs = [pair for key, item in value.items() for pair in zip((key, item), parts, strict=False)]
    elif kind is tuple and parts[-1:] != (...,):
        if len(typing.cast(tuple[object, ...], value)) != len(parts):
            return f"Input should be a tuple of {len(parts)}"
        pairs = list(zip(typing.cast(tuple[object, ...], value), parts, strict=True))
    else:
        pairs = [(item, parts[0]) for item in typing.cast(Collection[object], value)] if parts else []
    return next((why for item, part in pairs if (why := _mismatch(item, part))), None)


def _bounds(given: Any) -> Iterator[tuple[Callable[[Any], bool], str]]:
    """What `annotated_types` asks of a value, and how that is said."""
    match given:
        case Ge(ge=least):
            yield lambda x: x >= least, f"Input should be greater than or equal to {least}"
        case Gt(gt=least):
            yield lambda x: x > least, f"Input should be greater than {least}"
        case Le(le=most):
            yield lambda x: x <= most, f"Input should be less than or equal to {most}"
        case Lt(lt=most):
            yield lambda x: x < most, f"Input should be less than {most}"
        case MultipleOf(multiple_of=factor):
            yield lambda x: x % factor == 0, f"Input should be a multiple of {factor}"
        case MinLen(min_length=least):
            yield lambda x: len(x) >= least, f"Input should have at least {least} items"
        case GroupedMetadata():
            for each in given:
                yield from _bounds(each)
        case _:
            pass
