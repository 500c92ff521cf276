"""Machine output on stdout, everything else on stderr."""

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.cli import emit
from regard.core.errors import InputError, NumericsError, printable
from regard.files.writing import require_target


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Nobody reads any more. rich would exit with 1, which means a bug here; `main` knows what it is."""
        raise BrokenPipeError

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(printable(each) if isinstance(each, str) else each for each in objects), **options)


def given(text: str) -> str:
    """A text of the command line, or of standard input where that is -.

    Raises:
        InputError: standard input is not UTF-8.
    """
    if text != "-":
        return text
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not UTF-8 at byte {error.start}: {error.reason}; convert it") from None


@contextmanager
def weights_of(place: str) -> Iterator[None]:
    """Name where weights came from in an error that says that they diverged."""
    try:
        yield
    except NumericsError as error:
        if place in str(error):
            raise
        raise NumericsError(f"{place}: {error}") from error


def write(text: str) -> None:
    """Write a text of a model to stdout at once: verbatim, but on a terminal, where control characters are escaped."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def will_write(out: str | None, *names: str, folder: bool = False, new: bool = False) -> None:
    """`require_target` of an --out, or of files in that folder; None writes nothing."""
    if out is not None:
        for name in names or ("",):
            require_target(Path(out, name), folder=folder, new=new)


def finish(results: Mapping[str, Any], options: Any, page: ModuleType | None = None) -> None:
    """Write results.json, and the page of a module of `regard_lab.report`, into --out; with --json, print the
    results."""
    if options.out is not None:
        from regard.files.folders import write_json, write_text

        path = Path(options.out, "results.json")
        write_json(path, results)
        if page is not None:
            path = path.with_name(f"{page.__name__.rpartition('.')[2]}.html")
            write_text(path, page.render(results))
        console(machine=options.json).print(f"Every number: {path}", markup=False)
    if options.json:
        emit(results)


def tell(line: str) -> None:
    """A line on stderr, if there is anything to say."""
    if line:
        console(machine=True).print(line, markup=False)


def console(*, machine: bool = False) -> Console:
    """Where text goes: stdout, or stderr when stdout carries machine output."""
    if sys.stdout is None or not sys.stdout.isatty():
        return _Console(stderr=machine, width=160, highlight=False, soft_wrap=True)
    return _Console(stderr=machine, highlight=False)


def table(*columns: str, rows: Sequence[Sequence[object]], title: str | None = None) -> Table:
    """A plain table; numbers are right-aligned. All words are shown as they are: brackets are no markup."""
    shown = None if title is None else _text(title)
    built = Table(title=shown, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for at, column in enumerate(columns):
        numeric = all(str(row[at]).replace(".", "").replace("-", "").replace(",", "").isdigit() for row in rows)
        built.add_column(_text(column), justify="right" if rows and numeric else "left", overflow="fold")
    for row in rows:
        built.add_row(*map(_text, row))
    return built


def _text(cell: object) -> Text:
    return Text(printable(str(cell)))
