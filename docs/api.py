"""Writes a page for each class that others build on, from its docstrings and signatures as the source has them."""

import ast
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pages
from importable import importable

import regard
from regard.core import attention as core

CLASSES = (regard.AttentionLayer, regard.Heads, regard.ScoreBias, regard.State, core.Call)


def write(folder: Path) -> None:
    """Write a page for every class into `folder`/api."""
    (folder / "api").mkdir(parents=True, exist_ok=True)
    for cls in CLASSES:
        (folder / "api" / f"{cls.__name__}.md").write_text(class_page(cls), encoding="utf-8")


def class_page(cls: type) -> str:
    """What it is, how it is built, an example, what it holds, what it does."""
    title, body, sections = pages.split_docstring(cls)
    lines = [f"# {cls.__name__}", "", pages.prose(title), ""]
    lines += pages.paragraphs(body)
    if "Source" in sections:
        lines += [f"Source: {pages.escaped(sections['Source'])}", ""]
    lines += ["```python", *imported(cls), "```", ""]
    written = definition(cls)
    if not inspect.isabstract(cls):
        lines += ["## Building", "", "```python", *signature(cls, written), "```", ""]
        lines += entries("Args", sections) + entries("Raises", sections)
    if "Example" in sections:
        lines += ["## Example", "", *example(sections["Example"], cls)]
    held = attributes(written)
    if held:
        lines += ["## Attributes", "", "| | type | |", "|---|---|---|"]
        lines += [f"| `{name}` | `{pages.cell(kind)}` | {pages.prose(text)} |" for name, kind, text in held]
        lines.append("")
    made = list(methods(written))
    if made:
        lines += ["## Methods", ""]
    for method in made:
        lines += method_entry(cls, method)
    return "\n".join(lines).rstrip() + "\n"


def imported(cls: type) -> list[str]:
    """The line that imports it from where it is public."""
    home = next(module for module in (regard, core) if cls.__name__ in module.__all__)
    return [f"from {home.__name__} import {cls.__name__}"]


def definition(cls: type) -> ast.ClassDef:
    """The class as its source has it."""
    (written,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(written, ast.ClassDef)
    return written


def signature(cls: type, written: ast.ClassDef) -> list[str]:
    """How it is called: the arguments of `__init__`, or the fields of a dataclass or a named tuple."""
    for each in written.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return head(each, cls.__name__, returns=False)
    fields = inspect.signature(cls).parameters.values()
    kinds = {ast.unparse(each.target): each.annotation for each in written.body if isinstance(each, ast.AnnAssign)}
    texts = [argument(ast.arg(each.name, kinds[each.name]), default(each)) for each in fields]
    named = any(each.kind is each.KEYWORD_ONLY for each in fields)
    return spread(f"{cls.__name__}(", ["*"] * named + texts, ")")


def default(of: inspect.Parameter) -> ast.expr | None:
    """What a field is unless it is given."""
    return None if of.default is of.empty else ast.Constant(of.default)


def head(function: ast.FunctionDef, name: str, *, returns: bool = True, bound: bool = True) -> list[str]:
    """A signature; that of a method is without `self`."""
    arguments = function.args
    placed = [*arguments.posonlyargs, *arguments.args]
    defaults = dict(zip((each.arg for each in reversed(placed)), reversed(arguments.defaults), strict=False))
    defaults |= {a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None}
    placed = [each for each in placed if not bound or each.arg not in ("self", "cls")]
    texts = [argument(each, defaults.get(each.arg)) for each in placed]
    texts += ["*"] * bool(arguments.kwonlyargs)
    texts += [argument(each, defaults.get(each.arg)) for each in arguments.kwonlyargs]
    texts += [] if arguments.kwarg is None else [f"**{argument(arguments.kwarg, None)}"]
    end = f") -> {unquoted(function.returns)}" if returns and function.returns is not None else ")"
    return spread(f"{name}(", texts, end)


def spread(begin: str, texts: list[str], end: str) -> list[str]:
    """One line, or one for each argument."""
    line = f"{begin}{', '.join(texts)}{end}"
    return [line] if len(line) <= 88 else [begin, *(f"    {text}," for text in texts), end]


def argument(each: ast.arg, given: ast.expr | None) -> str:
    """An argument with its type, jaxtyping's shape included, and its default."""
    kind = "" if each.annotation is None else f": {unquoted(each.annotation)}"
    if given is None:
        return each.arg + kind
    shown = double_quoted(given)
    return f"{each.arg}{kind} = {shown}" if kind else f"{each.arg}={shown}"


def unquoted(annotation: ast.expr) -> str:
    """An annotation; one that is a text is what it says."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return double_quoted(annotation)


def double_quoted(code: ast.expr) -> str:
    """Code with the quotes of our sources."""
    return ast.unparse(code).replace("'", '"')


def attributes(written: ast.ClassDef) -> list[tuple[str, str, str]]:
    """Annotated attributes that have a docstring below, then properties: name, type, meaning."""
    found: list[tuple[str, str, str]] = []
    for line, below in itertools.pairwise(written.body):
        match line, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                found.append((name, unquoted(line.annotation), " ".join(text.split())))
    for each in written.body:
        if isinstance(each, ast.FunctionDef) and is_property(each):
            assert each.returns is not None
            found.append((each.name, unquoted(each.returns), ast.get_docstring(each) or ""))
    return found


def methods(written: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Public methods in the order of the source."""
    for each in written.body:
        if isinstance(each, ast.FunctionDef) and not re.match("_|extra_repr$", each.name) and not is_property(each):
            yield each


def is_property(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(each) == "property" for each in function.decorator_list)


def method_entry(cls: type, function: ast.FunctionDef) -> list[str]:
    """A method with its signature, its docstring, and what the parts are of the tuple that it returns."""
    title, body, sections = pages.docstring_parts(ast.get_docstring(function) or "")
    lines = [f"### {function.name}", "", "```python", *head(function, function.name), "```", "", pages.prose(title), ""]
    if body:
        lines += [pages.prose(body), ""]
    lines += entries("Args", sections)
    returned = "" if function.returns is None else ast.unparse(function.returns).partition(" | ")[0]
    kind = getattr(sys.modules[cls.__module__], returned, None)
    if isinstance(kind, type) and issubclass(kind, tuple):
        lines += [f"Returns a `{kind.__name__}`. {pages.prose(inspect.getdoc(kind) or '')}", ""]
    return [*lines, *entries("Returns", sections), *entries("Raises", sections)]


def entries(name: str, sections: dict[str, str]) -> list[str]:
    """A section of `name: meaning` as a list; what is returned may be one sentence."""
    if name not in sections:
        return []
    items = re.split(r"\n(?=[\w, .]+: )" if name == "Returns" else r"\n(?! )", sections[name])
    lines = [f"{name}:", ""]
    for item in items:
        key, _, text = " ".join(item.split()).partition(": ")
        lines.append(f"- `{key}`: {pages.prose(text)}" if text else f"- {pages.prose(key)}")
    return [*lines, ""]


def example(text: str, owner: object, home: str | None = None) -> list[str]:
    """Prose as prose, what is typed and printed as code, with the imports that it needs before its first line."""
    lines: list[str] = []
    whole = importable(text, owner, home)
    begin = whole.removesuffix(text)
    for part in text.split("\n\n"):
        if part.startswith(">>>"):
            lines += ["```python", *(begin + part).splitlines(), "```", ""]
            begin = ""
        else:
            lines += [pages.prose(part), ""]
    return lines
