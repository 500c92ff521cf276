"""The files of a folder that can be text, and a count of those that are left out."""

import os
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from regard.core.errors import DataError
from regard.files.reading import plain
from regard_lab.tasks.text_files import is_utf16

_LOOKED_AT = 1 << 13
"""bytes at the beginning of a file: what is binary has a zero byte there"""
_UNPACKED = (".parquet",)
"""endings of files that are binary and read all the same"""


class Folder(NamedTuple):
    """paths: files that are read, in the order of their names. left_out: what is said of the others, "" for none."""

    paths: tuple[Path, ...]
    left_out: str


def read_folder(folder: Path, suffixes: Collection[str]) -> Folder:
    """The files below a folder with one of these endings, sorted by their path.

    Left out, and counted: hidden files and folders (their names begin with a dot), other endings, empty and binary
    files, and links to folders, which could lead in circles.

    Raises:
        DataError: a folder or a file that cannot be read.
    """
    paths: list[Path] = []
    left: Counter[str] = Counter()

    def refuse(error: OSError) -> None:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error

    for where, folders, names in os.walk(folder, onerror=refuse):
        hidden = [name for name in folders if name.startswith(".")]
        linked = [name for name in folders if name not in hidden and Path(where, name).is_symlink()]
        left += Counter({"hidden": len(hidden), "link(s) to folders": len(linked)})
        folders[:] = [name for name in folders if name not in hidden and name not in linked]
        for name in names:
            path = Path(where, name)
            reason = "hidden" if name.startswith(".") else _unread(path, suffixes)
            if reason is None:
                paths.append(path)
            else:
                left[reason] += 1
    said = ", ".join(f"{count} {reason}" for reason, count in sorted(left.items()))
    return Folder(tuple(sorted(paths)), f"; left out: {said}" if said else "")


def _unread(path: Path, suffixes: Collection[str]) -> str | None:
    """Why a file is left out; None: it is not."""
    if path.suffix.lower() not in suffixes:
        return "of other kinds"
    try:
        with plain(path) as file:
            beginning = file.read(_LOOKED_AT)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if not beginning:
        return "empty"
    if path.suffix.lower() in _UNPACKED:
        return None
    return "of UTF-16" if is_utf16(beginning) else "binary" if b"\0" in beginning else None
