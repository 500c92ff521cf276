"""The words after a verb of the library, read into the dataclass of its options."""

import argparse
import ast
import inspect
import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, Field, field, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from regard.core.errors import ConfigError, nearest

Options = TypeVar("Options")


def words(default: Any = MISSING) -> Any:
    """A field of options that is given by its place, without --name; without a default there must be a word."""
    return field(default=default, metadata={"by_place": True})


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ConfigError(f"{message}; see {self.prog} --help")


def read(kind: type[Options], given: Sequence[str], *, verb: str, description: str | None) -> Options:
    """The options of a verb; `--help` ends the program.

    Args:
        kind: a dataclass; the texts below its fields describe the options.
        given: the words after the verb.
        verb: for messages.
        description: text of the help on the verb.

    Raises:
        ConfigError: unknown options, or values that an option does not take.
    """
    parser = _Parser(prog=f"regard {verb}", description=description, allow_abbrev=False)
    meanings, hints = _below_fields(kind), get_type_hints(kind)
    for each in fields(kind):  # type: ignore[arg-type]
        name = each.name if each.metadata.get("by_place") else f"--{each.name}"
        parser.add_argument(name, help=meanings.get(each.name, "").replace("%", "%%"), **_taken(each, hints[each.name]))
    found, rest = parser.parse_known_args(list(given))
    for word in rest:
        known = ["--help", *(f"--{each.name}" for each in fields(kind) if not each.metadata.get("by_place"))]  # type: ignore[arg-type]
        hint = nearest(word, known) if word.startswith("-") else f"see regard {verb} --help"
        raise ConfigError(f"unexpected {word!r}: {hint}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in vars(found).items()})


def _taken(each: Field[Any], hint: Any) -> dict[str, Any]:
    """What a field takes, as argparse says it."""
    if hint is bool:
        return {"action": "store_true"}
    several = get_origin(hint) is tuple
    taken: dict[str, Any] = {"metavar": each.name.upper()}
    if get_origin(hint) is Literal:
        taken = {"choices": get_args(hint), "metavar": f"{{{','.join(get_args(hint))}}}"}
    if several or each.default is not MISSING:
        taken["default"] = () if each.default is MISSING else each.default
        if several or each.metadata.get("by_place"):
            taken["nargs"] = "*" if several else "?"
    return taken


def _below_fields(kind: type) -> dict[str, str]:
    """Field -> the text below it."""
    (written,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(written, ast.ClassDef)
    said: dict[str, str] = {}
    for line, below in itertools.pairwise(written.body):
        match line, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                said[name] = " ".join(text.split())
    return said
