"""Writes the table and the number of mechanisms into both READMEs, from the catalog: `python docs/readme.py`."""

import re
from itertools import groupby
from pathlib import Path

from regard import catalog

ROOT = Path(__file__).parents[1]
HEADINGS = {"README.md": ("family", "mechanisms"), "README.zh-CN.md": ("家族", "机制")}
COUNTED = r"\d+(?= mechanisms| 种机制)"
BEGIN, END = "<!-- mechanisms: written by docs/readme.py -->\n", "<!-- end of mechanisms -->\n"


def write() -> None:
    """Both files, with the mechanisms of the catalog."""
    for file in HEADINGS:
        path = ROOT / file
        path.write_text(filled(file, path.read_text(encoding="utf-8")), encoding="utf-8")


def filled(file: str, text: str) -> str:
    """The text of a README with table and number in their places."""
    text = re.sub(COUNTED, str(len(catalog.names())), text)
    begin, old, end = re.split(f"({re.escape(BEGIN)}.*?{re.escape(END)})", text, flags=re.DOTALL)
    assert old
    return f"{begin}{BEGIN}{table(*HEADINGS[file])}{END}{end}"


def table(family: str, mechanisms: str) -> str:
    """A row for each family, each name linked to its file: linear time in bold, a dagger without a causal form."""
    rows = [f"| {family} | {mechanisms} |", "|---|---|"]
    for name, members in groupby(sorted(catalog.names(), key=catalog.family), key=catalog.family):
        links = [link(name, each) for each in members]
        rows.append(f"| [{name}](src/regard/attention/{name}) ({len(links)}) | {', '.join(links)} |")
    return "\n".join([*rows, ""])


def link(family: str, name: str) -> str:
    """A mechanism, and what its facts say of it."""
    info = catalog.outline(name)
    text = f"[`{name}`](src/regard/attention/{family}/{name}.py)"
    text = f"**{text}**" if info.time <= 1 else text
    return text if info.supports.causal else f"{text}†"


if __name__ == "__main__":
    write()
