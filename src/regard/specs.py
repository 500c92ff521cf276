"""Specification strings such as `local(window=128)`, and the classes in files that they name. Imports no torch."""

import ast
import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from regard.errors import ConfigError, nearest


@dataclass(frozen=True)
class Spec:
    """A name with options: `local(window=128)` is Spec("local", {"window": 128})."""

    name: str
    options: Mapping[str, object]

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
        return f"{self.name}({inside})" if inside else self.name


def parse(text: str) -> Spec:
    """Read a specification: a name, or a name called with keyword options whose values are literals or bare words.

    Raises:
        ConfigError: anything else.

    Example:
        >>> parse("linear(feature_map=relu, normalise=False)").options
        {'feature_map': 'relu', 'normalise': False}
    """
    require_text(text)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(
            f"cannot read {text!r}: write name or name(option=value, ...), with quotes around a value that is "
            "neither a number nor a name, such as '2d'"
        ) from error
    call = tree if isinstance(tree, ast.Call) else None
    target = tree if call is None else call.func
    if not isinstance(target, ast.Name):
        raise ConfigError(f"cannot read {text!r}: write name or name(option=value, ...)")
    if call is not None and (call.args or any(keyword.arg is None for keyword in call.keywords)):
        raise ConfigError(f"cannot read {text!r}: options are named, as in {target.id}(option=value)")
    options: dict[str, object] = {}
    for keyword in call.keywords if call else ():
        if keyword.arg in options:
            raise ConfigError(f"{text!r} gives the option {keyword.arg!r} twice")
        options[str(keyword.arg)] = _literal(keyword.value, text)
    return Spec(target.id, options)


def require_text(spec: object) -> None:
    """Refuse a specification that is none.

    Raises:
        ConfigError: it is no text.
    """
    if not isinstance(spec, str):
        raise ConfigError(f"a specification is a text such as 'local(window=64)', got {spec!r}")


def _literal(node: ast.expr, text: str) -> object:
    if isinstance(node, ast.Name):
        return node.id
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        part = ast.get_source_segment(text.strip(), node)
        raise ConfigError(
            f"cannot read {part!r} in {text!r}: an option is a number, a string, True, False, None, "
            "a tuple of these, or a bare word"
        ) from error


def split(text: str, separator: str) -> list[str]:
    """The parts between separators that stand outside brackets and quotes.

    Example:
        >>> split("a(x=1, y='p+q'):2 + b:2", "+")
        ["a(x=1, y='p+q'):2", 'b:2']
    """
    parts, depth, quote, start = [], 0, "", 0
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        elif character == separator and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


@cache
def files(package: str) -> Mapping[str, str]:
    """Name -> module of every public file below a package, without importing any of them."""
    folder = Path(__file__).parent.joinpath(*package.split(".")[1:])
    modules: dict[str, str] = {}
    for module in sorted(pkgutil.walk_packages([str(folder)]), key=lambda m: m.name):
        base = f"{package}.{module.name}"
        if module.ispkg:
            for inner in pkgutil.iter_modules([str(folder / module.name)]):
                if not inner.ispkg and not inner.name.startswith("_"):
                    modules[inner.name] = f"{base}.{inner.name}"
        elif not module.name.startswith("_"):
            modules[module.name] = base
    return modules


def camel(name: str) -> str:
    """The class name of a registered name: `dense_synthesizer` -> `DenseSynthesizer`."""
    return "".join(part.capitalize() for part in name.split("_"))


def load(kind: str, name: str, known: Mapping[str, str]) -> type:
    """The class of a registered name.

    Raises:
        ConfigError: an unknown name; the message names the nearest one.
    """
    if name not in known:
        raise ConfigError(f"unknown {kind} {name!r}: {nearest(name, known)}")
    return getattr(importlib.import_module(known[name]), camel(name))


def options_of(cls: type) -> dict[str, object]:
    """The keyword-only arguments of a class by name, with their defaults."""
    return {p.name: p.default for p in inspect.signature(cls).parameters.values() if p.kind is p.KEYWORD_ONLY}


def check_options(kind: str, name: str, cls: type, options: Mapping[str, object]) -> None:
    """Compare options with the keyword-only arguments of a class: names, then types.

    Raises:
        ConfigError: an unknown option (the message names the nearest one) or a value of the wrong type.
    """
    from regard.options import unknown, validate

    known = options_of(cls)
    hints = typing.get_type_hints(cls.__init__) if options else {}
    for option, value in options.items():
        if option not in known:
            raise unknown(f"{kind} {name}", option, known)
        validate(f"{kind} {name}", option, value, hints.get(option, object))


def is_path(text: str) -> bool:
    """Whether a text names a class by import path, as `module:Class`."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Z]\w*", text.strip()) is not None


def load_path(text: str) -> type:
    """The class at `module:Class`.

    Raises:
        ConfigError: no such module or class.
    """
    module, _, name = text.strip().partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot import {text!r}: {error}") from error
