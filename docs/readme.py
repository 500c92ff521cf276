"""Writes into both READMEs what is known elsewhere: `python docs/readme.py`.

The table and the number of mechanisms come from the catalog, the choice table from recorded comparisons (`choice.py`).
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
LANGUAGES: dict[str, Language] = {"README.md": "en", "README.zh-CN.md": "zh"}
BEGIN, END = "<!-- {}: written by docs/readme.py -->\n", "<!-- end of {} -->\n"


def write() -> None:
    """Both files, with the mechanisms of the catalog and the choice of the records."""
    for file in HEADINGS:
        path = ROOT / file
        path.write_text(filled(file, path.read_text(encoding="utf-8")), encoding="utf-8")


def filled(file: str, text: str) -> str:
    """The text of a README with tables and number in their places."""
    text = re.sub(COUNTED, str(len(catalog.names())), text)
    text = placed(text, "mechanisms", table(*HEADINGS[file]))
    return placed(text, "choice", choice.table(LANGUAGES[file]))


def placed(text: str, name: str, table: str) -> str:
    """The text with a table between its two marks."""
    begin, end = BEGIN.format(name), END.format(name)
    before, old, after = re.split(f"({re.escape(begin)}.*?{re.escape(end)})", text, flags=re.DOTALL)
    assert old
    return f"{before}{begin}{table}{end}{after}"


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
