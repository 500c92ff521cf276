"""Machine output on stdout, everything else on stderr; tables of plain text."""

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from regard.core.errors import printable

_WIDTH = 160
"""columns of a line where there is no terminal"""
_NARROWEST = 10
"""columns that a column of a table keeps"""


def as_json(payload: Any, indent: int | None = None) -> str:
    """A JSON document, readable but for control characters."""
    return printable(json.dumps(payload, ensure_ascii=False, indent=indent))


def emit(payload: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(as_json(payload, indent=2) + "\n")


def tell(line: str) -> None:
    """A line on stderr, if there is anything to say."""
    if line:
        say(line, machine=True)


def say(text: str, *, machine: bool = False) -> None:
    """Text for a reader on stdout, or on stderr when stdout carries machine output."""
    print(printable(text), file=sys.stderr if machine else sys.stdout)


def table(*columns: str, rows: Sequence[Sequence[object]], title: str | None = None) -> str:
    """A table whose widest columns are wrapped until it fits the terminal; numbers are right-aligned."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    room = shutil.get_terminal_size((_WIDTH, 0)).columns if sys.stdout and sys.stdout.isatty() else _WIDTH
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    while sum(widths) + 2 * len(widths) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    right = [
        bool(column) and all(cell.replace(".", "").replace("-", "").replace(",", "").isdigit() for cell in column)
        for column in (list(column) for column in zip(*cells, strict=True))
    ] or [False] * len(columns)

    def lines(row: Sequence[str]) -> list[str]:
        parts = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        height = max(map(len, parts))
        shown = [
            "  ".join(
                cell.rjust(width) if numeric else cell.ljust(width)
                for cell, width, numeric in zip(line, widths, right, strict=True)
            )
            for line in zip(*(part + [""] * (height - len(part)) for part in parts), strict=True)
        ]
        return [line.rstrip() for line in shown]

    rule = "-" * min(room, sum(widths) + 2 * len(widths) - 2)
    return "\n".join(
        [*([title] if title else []), *lines(columns), rule, *(line for row in cells for line in lines(row))]
    )
