"""Makes the example of a docstring run wherever it is pasted: it begins with the imports that its module has."""

import ast
import builtins
import doctest
import inspect
import sys
from collections.abc import Mapping

import regard


def importable(text: str, owner: object, home: str | None = None) -> str:
    """The example, behind an import of every name that it takes from the module of `owner`.

    Args:
        text: the example of a docstring.
        owner: what has the docstring.
        home: the module in which `owner` is public; None: its own, or `regard`.

    Example:
        >>> print(importable(">>> Heads(count=2, key_dim=8).value_width\\n8", regard.Heads))
        >>> from regard import Heads
        >>> Heads(count=2, key_dim=8).value_width
        8
    """
    missing = needed(text)
    within = vars(sys.modules[getattr(owner, "__module__", "regard")])
    title = str(getattr(owner, "__name__", ""))
    own = {title: f"from {home} import {title}"} if home and hasattr(sys.modules[home], title) else {}
    lines = [f">>> {own.get(name) or line_of(name, within)}" for name in sorted(missing) if name in within]
    return "\n".join([*lines, text])


def needed(text: str) -> set[str]:
    """Names that the example reads and does not make."""
    code = "".join(one.source for one in doctest.DocTestParser().get_examples(text))
    read, made = set[str](), set(dir(builtins))
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                made.add(name)
            case ast.alias(name=name, asname=other):
                made.add(other or name.partition(".")[0])
    return read - made


def line_of(name: str, within: Mapping[str, object]) -> str:
    """How it is imported: from where it is public, else from the module that makes it."""
    value = within[name]
    if inspect.ismodule(value):
        parent, _, last = value.__name__.rpartition(".")
        if not parent:
            return f"import {last}" if last == name else f"import {last} as {name}"
        return f"from {parent} import {last}" if last == name else f"import {value.__name__} as {name}"
    home = "regard" if name in regard.__all__ else getattr(value, "__module__", str(within["__name__"]))
    return f"from {home} import {name}"
