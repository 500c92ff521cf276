"""Files of rows with named columns: .jsonl, .csv, and, with the extra of that name, .parquet."""

import csv
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regard.core.errors import DataError, UnsupportedError
from regard.files.reading import plain
from regard_lab.tasks.text_files import lines

_LONGEST_CELL = (1 << 31) - 1
"""characters: the most that Python's csv takes everywhere"""
_ROWS_AT_A_TIME = 1024
"""of a .parquet file: a whole row group may be larger than memory"""


class Row(NamedTuple):
    """where: the file and the line (of .parquet, the row), from 1. values: of the columns that were asked for."""

    where: str
    values: Mapping[str, object]


def rows(path: Path, columns: Mapping[str, str], *, span: tuple[int, int] | None = None) -> Iterator[Row]:
    """The rows of a file, from the first on. Blank lines are none.

    .jsonl: one JSON object a line. .csv: RFC 4180, with a header; quoted cells may hold line ends, and cells have any
    length. .parquet: any that pyarrow reads.

    Args:
        path: a file that ends in one of `regard_lab.tasks.config.TABLES`.
        columns: the columns that are wanted -> the option that names another one, for messages.
        span: of .jsonl, only the lines that begin from this byte up to that one, which may be none; None: all.

    Raises:
        DataError: a file that is missing, empty, damaged or in another encoding; a line that is no row; a column that
            is not there. The message says on which line.
        UnsupportedError: .parquet without pyarrow.
    """
    if span is not None:
        return _json_lines(path, columns, span)
    read = {".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet}[path.suffix.lower()]
    return read(path, columns)


def text_in(row: Row, column: str, option: str) -> str:
    """The text in a column of a row.

    Raises:
        DataError: what is no text, or none that can be written as UTF-8 without a zero byte.
    """
    value = row.values[column]
    if not isinstance(value, str):
        raise DataError(
            f"{row.where}: field {column!r} holds {type(value).__name__}, not text; choose another with {option}"
        )
    if "\0" in value:
        raise DataError(f"{row.where}: field {column!r} holds U+0000, which is no text: remove it")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{row.where}: field {column!r} holds half a surrogate pair, which is no text: remove it"
        ) from error
    return value


def _json_lines(path: Path, columns: Mapping[str, str], span: tuple[int, int] | None = None) -> Iterator[Row]:
    empty = span is None
    behind = "" if span is None else f" behind byte {span[0]}"
    for number, line in enumerate(lines(path, span), 1):
        if not line.strip():
            continue
        empty, where = False, f"{path}, line {number}{behind}"
        try:
            row = json.loads(line)
        except ValueError as error:
            why = f"{error.msg} at character {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise DataError(f"{where}: no JSON: {why}") from error
        if not isinstance(row, dict):
            example = ", ".join(f'"{name}": ...' for name in columns)
            raise DataError(f"{where}: expected an object such as {{{example}}}, got {type(row).__name__}")
        _require(where, "field", list(row), columns)
        yield Row(where, {name: row[name] for name in columns})
    if empty:
        raise DataError(f"{path} is empty: give a file with one JSON object a line")


def _csv(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    header: list[str] | None = None
    empty = True
    for number, cells in _records(path):
        where = f"{path}, line {number}"
        if header is None:
            header = cells
            _require(where, "column", header, columns)
            continue
        if len(cells) != len(header):
            raise DataError(
                f"{where}: {len(cells)} cell(s), and the header has {len(header)}; a comma in a text needs "
                f'quotes around it: "a, b"'
            )
        empty = False
        yield Row(where, {name: cells[header.index(name)] for name in columns})
    if empty:
        has = "is empty" if header is None else "has a header and nothing below it"
        raise DataError(f"{path} {has}: give a header such as {','.join(columns)}, and a row on every line")


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line that a record begins on, and its cells."""
    reader = csv.reader(lines(path), strict=True)
    while True:
        began = reader.line_num + 1
        # The limit of 131,072 characters is one of the whole process, and shorter than many documents.
        limit = csv.field_size_limit(_LONGEST_CELL)
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            at = f"lines {began} to {reader.line_num}" if reader.line_num > began else f"line {began}"
            raise DataError(f"{path}, {at}: no CSV: {error}; quotes come in pairs, and two stand for one") from error
        finally:
            csv.field_size_limit(limit)
        if len(cells) > 1 or any(cell.strip() for cell in cells):
            yield began, cells


def _parquet(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    pyarrow, parquet = _pyarrow(path, "pyarrow"), _pyarrow(path, "pyarrow.parquet")
    number = 0
    try:
        with plain(path) as opened, parquet.ParquetFile(opened) as file:
            _require(str(path), "column", file.schema_arrow.names, columns)
            for batch in file.iter_batches(_ROWS_AT_A_TIME, columns=list(columns)):
                read = [batch.column(batch.schema.get_field_index(name)).to_pylist() for name in columns]
                for values in zip(*read, strict=True):
                    number += 1
                    yield Row(f"{path}, row {number}", dict(zip(columns, values, strict=True)))
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (pyarrow.ArrowException, ValueError) as error:
        raise DataError(f"{path} is damaged, or no .parquet file, after row {number}: {error}") from error
    if not number:
        raise DataError(f"{path} has no rows: give a file with some")


def _pyarrow(path: Path, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UnsupportedError(
            f"{path}: .parquet files need the pyarrow package: pip install 'regard[parquet]', or give .csv or .jsonl"
        ) from error


def _require(where: str, kind: str, names: Sequence[str], columns: Mapping[str, str]) -> None:
    """That each of the columns is there, and once."""
    for column, option in columns.items():
        if column not in names:
            shown = ", ".join(map(repr, names)) or "none"
            raise DataError(f"{where}: no {kind} {column!r}; {kind}s: {shown:.300}; choose one with {option}")
        if names.count(column) > 1:
            raise DataError(f"{where}: {names.count(column)} {kind}s have the name {column!r}; rename all but one")
