"""Options as a reader wants them: types and meanings as text."""

import ast
import inspect
import itertools
import re
import textwrap
from typing import Any

from regard.options import Configured


def meanings(cls: type) -> dict[str, str]:
    """The docstring below each option of a class, or of one of its templates, by name."""
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
    return {name: said[name] for name in cls.defaults if name in said}  # pyright: ignore[reportAttributeAccessIssue]


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
