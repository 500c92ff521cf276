"""Options as annotated class attributes: written once, read by Python, specifications, docs and type checkers."""

import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, dataclass_transform

from torch import nn

from regard.core.errors import unknown
from regard.core.info import Heads
from regard.core.types_of import hints, validate

_WEIGHT, _REQUIRED = object(), object()


def registered_name(cls: type) -> str:
    """The catalog name of a mechanism class: `DenseSynthesizer` -> `dense_synthesizer`, `Local2d` -> `local_2d`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[a-z])(?=[0-9])", "_", cls.__name__).lower()


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

    def tag_for(self, heads: Heads) -> str:
        """The tag of its states: class, options and heads as text, the same in every process and for copies.

        Without `impl`, since every implementation goes on from states of the others; the definition has its own.
        """
        told = {name: x for name, x in self.options.items() if name != "impl" or x == "reference"}
        named = ", ".join(f"{name}={_text(x)}" for name, x in told.items())
        sizes = f"count={heads.count}, kv_heads={heads.kv_heads}, key_dim={heads.key_dim}"
        return f"{registered_name(type(self))}({named}) on heads ({sizes}, value_dim={heads.value_width})"


def _text(value: object) -> str:
    """An option as text, without memory addresses; 3.0 and 3 are one option."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value)).removesuffix(".0")
