"""Writes the reference of the public names that have no page of their own: functions, facts, errors, and modules."""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import api
import pages

import regard
from regard.integrations import pretrained
from regard.integrations import torch as torch_integration
from regard_lab import calibration

PAGES = ("functions", "parts", "errors", "integrations", "calibration")
"""in this order in the table of contents"""


def write(folder: Path) -> None:
    """Write the pages into `folder`/api."""
    (folder / "api").mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        (folder / "api" / f"{name}.md").write_text(globals()[f"{name}_page"](), encoding="utf-8")


def public() -> dict[str, Any]:
    """What `regard` exports, without the version."""
    return {name: getattr(regard, name) for name in regard.__all__ if name != "__version__"}


def functions_page() -> str:
    """The functions of `regard`."""
    found = {name: each for name, each in public().items() if inspect.isfunction(each)}
    lines = ["# Functions", "", "All are names of `regard` itself.", ""]
    return page([*lines, *table(found), *(line for name in found for line in function(regard, name))])


def parts_page() -> str:
    """Classes of `regard` that are read or inherited rather than built."""
    classes = {name: each for name, each in public().items() if inspect.isclass(each)}
    found = {n: each for n, each in classes.items() if not issubclass(each, Exception) and each not in api.CLASSES}
    lines = ["# Parts of the protocol", "", "What a mechanism is, says of itself and returns: names of `regard`.", ""]
    return page([*lines, *table(found), *(line for name in found for line in described(regard, name))])


def errors_page() -> str:
    """Every error with its base, and what the command line exits with."""
    found = [each for each in public().values() if inspect.isclass(each) and issubclass(each, Exception)]
    lines = ["# Errors", "", "A message says who, what it got, what it allows, and the way out.", ""]
    lines += ["| error | is also | exit code | |", "|---|---|---|---|"]
    for each in found:
        bases = ", ".join(f"`{base.__name__}`" for base in each.__bases__ if base is not Exception)
        said = pages.prose(inspect.getdoc(each) or "")
        lines.append(f"| `{each.__name__}` | {bases} | {each.exit_code} | {said} |")
    return page([*lines, ""])


def integrations_page() -> str:
    """What serves networks that were not built here."""
    lines = ["# Integrations", "", "[Into a model that you have](../../drop_in.md) and ", ""]
    lines[-2] += "[published weights](../../pretrained.md) show them in use."
    return page([*lines, *(line for module in (pretrained, torch_integration) for line in contents(module))])


def calibration_page() -> str:
    """How a threshold gets its guarantee."""
    lines = ["# Calibration", "", "Guide: [how early to stop](../../early_exit.md#how-early-to-stop).", ""]
    return page([*lines, *contents(calibration)])


def contents(module: ModuleType) -> list[str]:
    """What a module is for, and an entry of each of its public names."""
    lines = [f"## `{module.__name__}`", "", pages.prose((inspect.getdoc(module) or "").partition("\n\n")[0]), ""]
    for name in module.__all__:
        lines += (function if inspect.isfunction(getattr(module, name)) else described)(module, name)
    return lines


def page(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def table(found: Mapping[str, object]) -> list[str]:
    """Name and first line, with a link to the entry below."""
    rows = [(name, (inspect.getdoc(each) or "").partition("\n")[0]) for name, each in found.items()]
    lines = [f"| [`{name}`](#{name.lower()}) | {pages.cell(pages.prose(text))} |" for name, text in rows]
    return ["| | |", "|---|---|", *lines, ""]


def function(module: ModuleType, name: str) -> list[str]:
    """An entry of a function: how it is imported and called, and what its docstring says."""
    each = getattr(module, name)
    (written,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
    assert isinstance(written, ast.FunctionDef)
    title, body, sections = pages.split_docstring(each)
    level = "##" if module is regard else "###"
    lines = [f"{level} {name}", "", "```python", f"from {module.__name__} import {name}", ""]
    lines += [*api.head(written, name, bound=False), "```", "", pages.prose(title), "", *pages.paragraphs(body)]
    return [*lines, *told(sections, each, module)]


def described(module: ModuleType, name: str) -> list[str]:
    """An entry of a class: how it is imported, what its docstring says, what it holds."""
    cls = getattr(module, name)
    title, body, sections = pages.split_docstring(cls)
    level = "##" if module is regard else "###"
    lines = [f"{level} {name}", "", "```python", f"from {module.__name__} import {name}", "```", ""]
    lines += [pages.prose(title), "", *pages.paragraphs(body), *told(sections, cls, module)]
    held = api.attributes(api.definition(cls))
    if held:
        lines += ["| attribute | type | |", "|---|---|---|"]
        lines += [f"| `{key}` | `{pages.cell(kind)}` | {pages.cell(pages.prose(text))} |" for key, kind, text in held]
    return [*lines, ""]


def told(sections: dict[str, str], owner: object, module: ModuleType) -> list[str]:
    """Arguments, what is returned and raised, and the example, which runs as it is printed."""
    lines = [line for name in ("Args", "Returns", "Raises") for line in api.entries(name, sections)]
    if "Example" in sections:
        lines += ["Example:", "", *api.example(sections["Example"], owner, home=module.__name__)]
    return lines
