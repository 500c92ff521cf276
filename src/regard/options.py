"""Options as annotated class attributes: written once, read by Python, specifications, docs and type checkers."""

import inspect
import math
import re
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Literal, dataclass_transform

from torch import nn

from regard.errors import ConfigError, nearest

_WEIGHT, _REQUIRED = object(), object()


def weight(*, init: Literal[False] = False) -> Any:
    """Declares a parameter, buffer or fact that the instance makes itself: no option."""
    del init
    return _WEIGHT


def option(*, kw_only: bool = True) -> Any:
    """Declares an option without a default; `kw_only=False`: one that is given by its place."""
    del kw_only
    return _REQUIRED


class Options(Mapping[str, Any]):
    """Options by name, every default filled in; fixed once made."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._values.items())


@dataclass_transform(kw_only_default=True, field_specifiers=(option, weight))
class Configured(nn.Module):
    """A module whose class body is its configuration.

    Public annotated attributes with a value are options: name, type, bounds (`annotated_types`) and default, in one
    line, with a docstring below. `weight()` in place of the value declares what `setup` makes. What is a `ClassVar` or
    begins with an underscore is neither. The value leaves the class, where it would hide what a module stores.
    """

    defaults: ClassVar[Mapping[str, Any]] = {}
    """every option of the class and its templates, its own first"""

    options: Options = weight()
    """what this instance was built with"""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        declared: dict[str, Any] = {}
        for name, hint in inspect.get_annotations(cls).items():
            if name.startswith("_") or typing.get_origin(hint) is ClassVar or hint is ClassVar or name not in vars(cls):
                continue
            value = vars(cls)[name]
            delattr(cls, name)
            if value is not _WEIGHT and value is not _REQUIRED:
                declared[name] = value
        cls.defaults = {**declared, **{name: value for name, value in cls.defaults.items() if name not in declared}}
        keyword = inspect.Parameter.KEYWORD_ONLY
        first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in cls._places()]
        keywords = [
            inspect.Parameter(name, keyword, default=default, annotation=hints(cls).get(name, Any))
            for name, default in cls.defaults.items()
        ]
        cls.__signature__ = inspect.Signature([*first, *keywords])

    @classmethod
    def _places(cls) -> tuple[str, ...]:
        """Names of the arguments that are given by their place."""
        return ()

    @classmethod
    def filled(cls, values: Mapping[str, object], label: str) -> Options:
        """Every option: the values given, checked, and the defaults of the others.

        Args:
            values: those given, by name.
            label: who is asked, for messages: `mechanism lsh`.

        Raises:
            ConfigError: an unknown name (the message has the nearest one), a value of another type or out of bounds.
        """
        for name, value in values.items():
            if name not in cls.defaults:
                raise unknown(label, name, cls.defaults)
            if value is not cls.defaults[name]:
                validate(label, name, value, hints(cls)[name])
        return Options({name: values.get(name, default) for name, default in cls.defaults.items()})

    def configure(self, values: Mapping[str, object], label: str) -> None:
        """Store the options, each as an attribute too."""
        self.options = type(self).filled(values, label)
        for name, value in self.options.items():
            setattr(self, name, value)


@cache
def hints(cls: type) -> dict[str, Any]:
    """The types of a class's annotated attributes, by name."""
    return typing.get_type_hints(cls, include_extras=True)


def unknown(label: str, name: str, known: typing.Iterable[str]) -> ConfigError:
    """The error for an option that does not exist."""
    known = list(known)
    if not known:
        return ConfigError(f"{label} has no options, got {name!r}")
    return ConfigError(f"{label} has no option {name!r}: {nearest(name, known)}")


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
        raise ConfigError(f"{label}: option {name}={value!r} is not valid: {why}") from error
    why = _problem(value)
    if why is not None:
        raise ConfigError(f"{label}: option {name}={value!r} is not valid: {why}")


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
    if kind not in (int, float, bool) and hasattr(kind, "__float__"):  # of torch and numpy
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

    return pydantic.TypeAdapter(hint, config=pydantic.ConfigDict(arbitrary_types_allowed=True))


def registered_name(cls: type) -> str:
    """The catalog name of a mechanism class: `DenseSynthesizer` -> `dense_synthesizer`, `Local2d` -> `local_2d`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[a-z])(?=[0-9])", "_", cls.__name__).lower()
