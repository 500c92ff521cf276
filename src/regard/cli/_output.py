"""Machine output on stdout, everything else on stderr."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def emit(payload: Any) -> None:
    """One JSON document on stdout."""
    json.dump(payload, sys.stdout, ensure_ascii=False, indent=2)
    sys.stdout.write("\n")


def console(*, machine: bool = False) -> Console:
    """Where text goes: stdout, or stderr when stdout carries machine output."""
    if not sys.stdout.isatty():
        return Console(stderr=machine, width=160, highlight=False, soft_wrap=True)
    return Console(stderr=machine, highlight=False)


def table(*columns: str, rows: Sequence[Sequence[object]], title: str | None = None) -> Table:
    """A plain table; numbers are right-aligned."""
    built = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for at, column in enumerate(columns):
        numeric = all(str(row[at]).replace(".", "").replace("-", "").replace(",", "").isdigit() for row in rows)
        built.add_column(column, justify="right" if rows and numeric else "left", overflow="fold")
    for row in rows:
        built.add_row(*(str(cell) for cell in row))
    return built
