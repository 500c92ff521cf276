"""Texts with classes, from a file of the user's: .jsonl, .csv or .parquet."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.core.errors import DataError
from regard_lab.tasks.tables import Row, rows, text_in

_LONGEST_LABEL = 256
"""characters; what is longer is a text, from another column"""
_FEWEST = 3
"""different texts of a class: one for each split"""
_KINDS = {str: "text", int: "a whole number", bool: "true or false"}
_OPTIONS, _TEST_OPTIONS = ("--task.field", "--task.label-field"), ("--task.test-field", "--task.test-label-field")


class Labelled(NamedTuple):
    """A text, its class, and its author: texts of one author are never in two splits. Authors of one stratum are split
    on their own, so that each stratum is in every split."""

    text: str
    label: str
    author: str
    stratum: str


def read_labelled(
    path: Path, text: str, label: str, *, classes: Collection[str] | None = None
) -> tuple[list[Labelled], tuple[str, ...]]:
    """The texts of a file, and the names of their classes in order: numbers as numbers, others as text.

    Equal texts have one author, so they are never in two splits; every class is a stratum.

    Args:
        path: one of `regard_lab.tasks.config.TABLES`.
        text: the column of texts.
        label: the column of classes: text, whole numbers, or true and false, all of one kind.
        classes: those that training texts have, for a file that tests; None: this file has them.

    Raises:
        DataError: as `rows`; a text that is empty; labels that are none, of several kinds, or differ by white space
            alone; a label that is none of `classes`, or, without these, one class only or one of fewer than three
            different texts. The message says on which line.
        UnsupportedError: as `rows`.
    """
    found: list[Labelled] = []
    began: dict[str | int, str] = {}
    options = _OPTIONS if classes is None else _TEST_OPTIONS
    for row in rows(path, dict(zip((text, label), options, strict=True))):
        value, content = _label(row, label, options), text_in(row, text, options[0])
        if not content.strip():
            raise DataError(f"{row.where}: field {text!r} is empty: write a text, or remove the row")
        for other, where in began.items():
            if type(other) is not type(value):
                raise DataError(
                    f"{row.where}: label {_named(value)!r} is {_KINDS[type(value)]}, and that of {where} "
                    f"{_KINDS[type(other)]}: write all labels in one way"
                )
            break  # all of `began` are of one kind
        if classes is not None and _named(value) not in classes:
            raise DataError(
                f"{row.where}: label {_named(value)!r} is none of the classes of the training texts: "
                f"{', '.join(map(repr, classes)):.300}"
            )
        began.setdefault(value, row.where)
        found.append(Labelled(content, _named(value), content, _named(value)))
    names = {_named(value): began[value] for value in sorted(began)}
    _require_different(names)
    if classes is None:
        _require_enough(path, found, names, label)
    return found, tuple(names)


def _label(row: Row, column: str, options: tuple[str, str]) -> str | int:
    value = row.values[column]
    if not isinstance(value, str | int):  # a bool is an int
        kind = "nothing" if value is None else f"a {type(value).__name__}"
        raise DataError(
            f"{row.where}: field {column!r} holds {kind}, which is no label: it must be text, a whole number, or true "
            f"or false; choose another with {options[1]}"
        )
    if not isinstance(value, str):
        return value
    value = text_in(row, column, options[1])
    if not value.strip():
        raise DataError(f"{row.where}: label {column!r} is empty: write one, or remove the row")
    if len(value) > _LONGEST_LABEL:
        raise DataError(
            f"{row.where}: label {column!r} has {len(value):,} characters, and {_LONGEST_LABEL} are the most; if it is "
            f"the text, choose the label with {options[1]} and the text with {options[0]}"
        )
    return value


def _named(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _require_different(names: dict[str, str]) -> None:
    """That no two classes differ by white space alone, which is a slip of who wrote them."""
    bare: dict[str, str] = {}
    for name, where in names.items():
        other = bare.setdefault(name.strip(), name)
        if other != name:
            raise DataError(
                f"{where}: label {name!r} and {other!r} ({names[other]}) differ by white space alone; write them alike"
            )


def _require_enough(path: Path, found: Sequence[Labelled], names: dict[str, str], label: str) -> None:
    if len(names) < 2:
        raise DataError(
            f"{path}: all texts are of one class, {next(iter(names))!r}, so there is nothing to tell apart; choose "
            f"another column of labels than {label!r} with {_OPTIONS[1]}"
        )
    texts: dict[str, set[str]] = {name: set() for name in names}
    for each in found:
        texts[each.label].add(each.text)
    for name, different in texts.items():
        if len(different) < _FEWEST:
            raise DataError(
                f"{names[name]}: class {name!r} has {len(different)} different text(s), and train, valid and test need "
                "one each: give more, or remove the class"
            )
