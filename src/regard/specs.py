"""Specification strings such as `local(window=128)`, and the classes in files that they name. Imports no torch."""

import ast
import importlib
import inspect
import re
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

from regard.core.errors import ConfigError, nearest, unknown
from regard.files.consent import PATH, paths_in
from regard.files.reading import found_in

_CLASS = re.compile(r"([A-Za-z_][\w.]*:[A-Z]\w*)\s*(\(.*\))?", re.DOTALL)
Kind = TypeVar("Kind")
_BARE_WORDS = {"true": True, "false": False}
"""as TOML and JSON write them"""


@dataclass(frozen=True)
class Spec:
    """A name with options: `local(window=128)` is Spec("local", {"window": 128}). The name may be `module:Class`."""

    name: str
    options: Mapping[str, object]

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
        return f"{self.name}({inside})" if inside else self.name


def parse(text: str) -> Spec:
    """Read a specification: a name or `module:Class`, alone or called with keyword options whose values are literals or
    bare words.

    Raises:
        ConfigError: anything else.

    Example:
        >>> parse("linear(feature_map=relu, normalise=False)").options
        {'feature_map': 'relu', 'normalise': False}
    """
    require_text(text)
    found = _CLASS.fullmatch(text.strip())
    written = text.strip() if found is None else f"{found[1].partition(':')[2]}{found[2] or ''}"
    try:
        tree = ast.parse(written, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if PATH.match(text.strip()):
            raise ConfigError(
                f"cannot read {text!r}: write module:Class or module:Class(option=value, ...), with a capital in front "
                "of the class"
            ) from error
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
    return Spec(target.id if found is None else found[1], options)


def require_text(spec: object) -> None:
    """Refuse a specification that is none.

    Raises:
        ConfigError: it is no text.
    """
    if not isinstance(spec, str):
        raise ConfigError(f"a specification is a text such as 'local(window=64)' or 'my_module:Mine', got {spec!r}")


def _literal(node: ast.expr, text: str) -> object:
    if isinstance(node, ast.Name):
        return _BARE_WORDS.get(node.id, node.id)
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
    """Name -> module of every public file in the folder of a package and in the packages there, without importing any.

    A package there that has a `PACKAGE` of its own is another kind (`regard.memory.caches`), and is left out. The
    folder is read as a folder: `pkgutil.walk_packages` imports packages by their bare names, whoever's they are.
    """
    folder = Path(__file__).parent.joinpath(*package.split(".")[1:])
    inner = [path for path in found_in(folder) if (path / "__init__.py").is_file()]
    inner = [path for path in inner if "\nPACKAGE = " not in (path / "__init__.py").read_text(encoding="utf-8")]
    found = sorted(path for each in (folder, *inner) for path in found_in(each, ".py") if path.stem[:1] != "_")
    return {path.stem: ".".join((package, *path.relative_to(folder).with_suffix("").parts)) for path in found}


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


class Registry(Generic[Kind]):
    """The classes of one kind by name: a file each, in a package.

    Args:
        kind: what error messages call it.
        package: where the files are.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self.package = kind, package

    def names(self) -> list[str]:
        """Every registered name."""
        return sorted(files(self.package))

    def find(self, name: str) -> type[Kind]:
        """The class of a name.

        Raises:
            ConfigError: an unknown name.
        """
        return load(self.kind, name, files(self.package))

    def build(self, spec: str, *places: object) -> Kind:
        """Build from a specification such as `recent(length=128)`, and what the class takes besides its options.

        Raises:
            ConfigError: an unknown name or option.
        """
        parsed = parse(spec)
        return self.find(parsed.name)(*places, **parsed.options)


def options_of(cls: type) -> dict[str, object]:
    """The keyword-only arguments of a class by name, with their defaults."""
    return {p.name: p.default for p in inspect.signature(cls).parameters.values() if p.kind is p.KEYWORD_ONLY}


def check_options(kind: str, name: str, cls: type, options: Mapping[str, object]) -> None:
    """Compare options with the keyword-only arguments of a class: names, then types.

    Raises:
        ConfigError: an unknown option (the message names the nearest one) or a value of the wrong type.
    """
    from regard.core.types_of import validate

    known = options_of(cls)
    hints = typing.get_type_hints(cls.__init__) if options else {}
    for option, value in options.items():
        if option not in known:
            raise unknown(f"{kind} {name}", option, known)
        validate(f"{kind} {name}", option, value, hints.get(option, object))


def is_path(text: str) -> bool:
    """Whether a text names a class by import path, as `module:Class` or `module:Class(option=value)`."""
    return _CLASS.fullmatch(text.strip()) is not None


def paths(value: object) -> list[str]:
    """Every import path that building the specifications in a value could import.

    More is found rather than less: every text in it counts, and every text that an option's value turns out to be.

    Args:
        value: a specification or a mix; or dictionaries, lists and tuples with some inside.

    Example:
        >>> paths(["softmax:2 + my.module:Mine(window=3):2", r"score(function='my\\x3afunction')"])
        ['my.module:Mine', 'my:function']
    """
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return list(dict.fromkeys(path for item in value for path in paths(item)))
    if not isinstance(value, str):
        return []
    found = paths_in(value)
    for part in split(value, "+"):
        with suppress(ConfigError):  # what cannot be read cannot be built
            spec = parse(unshared(part))
            found += paths_in(spec.name) + paths(spec.options)
    return list(dict.fromkeys(found))


def counted(part: str) -> tuple[str, int]:
    """A specification and the number behind it: of how many layers one after the other it is, 1 where nothing is said.

    Raises:
        ConfigError: a number that is 0 or has more than nine digits.

    Example:
        >>> counted("recent(length=4):12")
        ('recent(length=4)', 12)
    """
    require_text(part)
    inner = unshared(part)
    if inner == part:
        return part, 1
    number = split(part, ":")[-1].lstrip("0")
    if not 0 < len(number) <= 9:
        raise ConfigError(f"{part!r}: the number behind a specification is of layers, from 1 to 999999999")
    return inner, int(number)


def unshared(part: str) -> str:
    """A part of a mix without its number of heads.

    Example:
        >>> unshared("my.module:Mine(window=3):2")
        'my.module:Mine(window=3)'
    """
    *inner, heads = split(part, ":")
    return ":".join(inner) if inner and re.fullmatch("[0-9]+", heads) else part
