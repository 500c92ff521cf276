"""Update the generated tables of the READMEs and of the pages on comparing: `python docs/readme.py`.

The number and the table of mechanisms come from the catalog, the comparison tables from `choice.py`.
"""

import re
from itertools import groupby
from pathlib import Path

import choice

from regard import catalog
from regard_lab.benchmark.language import Language

ROOT = Path(__file__).parents[1]
HEADINGS = {"README.md": ("family", "mechanisms"), "README.zh-CN.md": ("家族", "机制")}
COUNTED = r"\d+(?= mechanisms| 种机制)"
COMPARED: dict[str, Language] = {"docs/comparing.md": "en", "docs/zh/choice.md": "zh"}
BEGIN, END = "<!-- {}: written by docs/readme.py -->\n", "<!-- end of {} -->\n"


def write() -> None:
    """Update every file that has a generated table."""
    for file in (*HEADINGS, *COMPARED):
        path = ROOT / file
        path.write_text(filled(file, path.read_text(encoding="utf-8")), encoding="utf-8")


def filled(file: str, text: str) -> str:
    """Return the text of a file with its generated parts updated."""
    if file in COMPARED:
        return placed(text, "choice", choice.table(COMPARED[file]))
    text = re.sub(COUNTED, str(len(catalog.names())), text)
    return placed(text, "mechanisms", table(*HEADINGS[file]))


def placed(text: str, name: str, table: str) -> str:
    """Return the text with the table between its two markers."""
    begin, end = BEGIN.format(name), END.format(name)
    before, old, after = re.split(f"({re.escape(begin)}.*?{re.escape(end)})", text, flags=re.DOTALL)
    assert old
    return f"{before}{begin}{table}{end}{after}"


def table(family: str, mechanisms: str) -> str:
    """Table of families, each name linked to its file: bold for linear time, a dagger for no causal form."""
    rows = [f"| {family} | {mechanisms} |", "|---|---|"]
    for name, members in groupby(sorted(catalog.names(), key=catalog.family), key=catalog.family):
        links = [link(name, each) for each in members]
        rows.append(f"| [{name}](src/regard/attention/{name}) ({len(links)}) | {', '.join(links)} |")
    return "\n".join([*rows, ""])


def link(family: str, name: str) -> str:
    """Link to the file of a mechanism, marked by its facts."""
    info = catalog.outline(name)
    text = f"[`{name}`](src/regard/attention/{family}/{name}.py)"
    text = f"**{text}**" if info.time <= 1 else text
    return text if info.supports.causal else f"{text}†"


if __name__ == "__main__":
    write()
