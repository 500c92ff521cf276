"""Options as a reader wants them: types and meanings as text."""

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable
from typing import Any

from regard.core.options import Configured


def meanings(of: Callable[..., object]) -> dict[str, str]:
    """What the options of a class or a function mean, by name.

    Of a class with options as annotated attributes: the docstring below each, in the class or one of its templates. Of
    others: what the section `Args` of the docstring says of the keyword-only arguments.
    """
    if isinstance(of, type) and issubclass(of, Configured):
        said = _below_attributes(of)
        return {name: said[name] for name in of.defaults if name in said}
    said = _arguments(inspect.getdoc(of) or "")
    known = [p.name for p in inspect.signature(of).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return {name: said[name] for name in known if name in said}


def _below_attributes(cls: type) -> dict[str, str]:
    said: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not issubclass(base, Configured) or base is Configured:
            continue
        (written,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(written, ast.ClassDef)
        body = written.body
        for line, below in itertools.pairwise(body):
            match line, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                    said[name] = " ".join(text.split())
    return said


def _arguments(docstring: str) -> dict[str, str]:
    """The section `Args`: `name, other: text`, whose further lines stand deeper."""
    section = re.search(r"^Args:\n((?: +.*\n?)+)", docstring, re.MULTILINE)
    if section is None:
        return {}
    entries = re.split(r"\n(?=\S)", textwrap.dedent(section[1]))
    parted = [" ".join(entry.split()).partition(": ") for entry in entries]
    return {name: text.removesuffix(".") for names, _, text in parted for name in names.split(", ")}


_SIGNS = {"Ge": ">=", "Gt": ">", "Le": "<=", "Lt": "<"}


def type_text(hint: Any) -> str:
    """A type as a reader wants it: without the modules of its parts, bounds as inequalities.

    Example:
        >>> from typing import Annotated
        >>> from annotated_types import Ge
        >>> type_text(Annotated[int, Ge(1)] | None)
        'int >= 1 | None'
    """
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", inspect.formatannotation(hint))
    text = re.sub(r"Optional\[(.*)\]", r"\1 | None", text)
    text = re.sub(r"\b(Ge|Gt|Le|Lt)\(\w+=([^)]+)\)", lambda match: f"{_SIGNS[match[1]]} {match[2]}", text)
    return re.sub(r"Annotated\[([\w.]+), ([^\]]+)\]", lambda match: f"{match[1]} {match[2]}", text)
