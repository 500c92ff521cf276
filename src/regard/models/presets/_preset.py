"""The form of a preset: a function of its sizes and options."""

import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

from regard.core.errors import ConfigError, nearest
from regard.core.types_of import hints

Fields = dict[str, object]
"""values of a configuration by field: `Fields(dim=64, heads=4)`"""

_LAST = ("max_length", "dropout", "attention_dropout", "seed")
"""the sizes that are listed behind a preset's own options"""


class Preset:
    """A published model. Called with keyword arguments it is a configuration of its `kind`.

    Args:
        base: the kind of configuration; or another preset, whose sizes and other fields hold where this one has none.
        sizes: fields that are arguments, with the published values; all have `seed`.
        derive: further fields, which make the model what it is, from sizes (its parameters without a default) and
            options (those with one). Its docstring is a title, what differs from the base, sections `Args` (own
            options, and sizes that mean more than in the configuration) and `Raises` where there are any, the source.
    """

    def __init__(self, base: "type[Any] | Preset", sizes: Fields, derive: Callable[..., Fields]) -> None:
        self.base = base if isinstance(base, Preset) else None
        self.kind: type[Any] = base.kind if isinstance(base, Preset) else base
        self.sizes = {**(self.base.sizes if self.base else {"seed": 0}), **sizes}
        self.derive = derive
        self._read = inspect.signature(derive).parameters
        self.options = {name: p.default for name, p in self._read.items() if p.default is not p.empty}
        self.__name__, self.__doc__ = derive.__name__, self._documented(inspect.getdoc(derive) or "")

    def __call__(self, **overrides: object) -> Any:
        arguments = self.__signature__.parameters
        known = dict.fromkeys([*arguments, *(field.name for field in fields(self.kind))])
        for field in overrides:
            if field not in known:
                raise ConfigError(f"preset {self.__name__} has no field {field!r}: {nearest(field, known)}")
        given = {field: value for field, value in overrides.items() if field in arguments}
        config = self.kind(**self._fields({**self.sizes, **self.options, **given}))
        return replace(config, **{field: value for field, value in overrides.items() if field not in arguments})

    @property
    def __signature__(self) -> inspect.Signature:
        """Sizes and own options, all keyword-only, with their types and defaults."""
        types = {**hints(self.kind), **typing.get_type_hints(self.derive)}
        last = {name: self.sizes[name] for name in _LAST if name in self.sizes}
        first = {name: value for name, value in self.sizes.items() if name not in last}
        return inspect.Signature(
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
                for name, default in (first | self.options | last).items()
            ]
        )

    def _fields(self, values: Fields) -> Fields:
        """The fields of the configuration; those of the base follow the sizes, with its own options as published."""
        found = {name: values[name] for name in self.sizes}
        if self.base is not None:
            found |= self.base._fields(self.base.options | {name: values[name] for name in self.base.sizes})
        return found | self.derive(**{name: values[name] for name in self._read})

    def _documented(self, text: str) -> str:
        """The text, whose arguments begin with the sizes that it does not explain itself."""
        rest = [name for name in self.__signature__.parameters if name in self.sizes]
        rest = [name for name in rest if not re.search(rf"^    ([\w, ]+, )?{name}(, [\w, ]+)?: ", text, re.MULTILINE)]
        line = f"Args:\n    {', '.join(rest)}: as `{self.kind.__name__}`.\n"
        if "\nArgs:\n" in text:
            return text.replace("Args:\n", line, 1)
        where = text.rindex("\nSource: ") + 1
        return f"{text[:where]}{line}\n{text[where:]}"


def preset(base: type[Any] | Preset, sizes: Fields) -> Callable[[Callable[..., Fields]], Preset]:
    """Make a preset of the function that derives its fields; name and text are the function's."""
    return partial(Preset, base, sizes)
