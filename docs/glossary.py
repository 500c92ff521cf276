"""Writes what the facts of a mechanism mean, from the docstrings of `regard.core.info`; `glossary.md` includes it."""

from pathlib import Path

import api
import pages

from regard.core.info import Heads, Info, Input, Supports

ABOUT = {Info: "Facts", Supports: "What may be supported", Input: "A declared input", Heads: "What a layer asks for"}


def write(folder: Path) -> None:
    """Write what `glossary.md` includes."""
    lines = [line for cls, title in ABOUT.items() for line in section(cls, title)]
    (folder / "glossary_facts.inc").write_text("\n".join(lines), encoding="utf-8")


def section(cls: type, title: str) -> list[str]:
    """A table of the fields of a class."""
    rows = [f"| `{name}` | {pages.cell(pages.prose(text))} |" for name, text in meanings(cls).items()]
    return [f"### {title}: `{cls.__name__}`", "", "| | |", "|---|---|", *rows, ""]


def meanings(cls: type) -> dict[str, str]:
    """Name -> what it means; a text below two fields is about both."""
    found = {name: text for name, _, text in api.attributes(api.definition(cls))}
    _, _, sections = pages.split_docstring(cls)
    for line in api.entries("Args", sections):
        name, _, text = line.removeprefix("- `").partition("`: ")
        found |= {name: text} if text else {}
    return found
