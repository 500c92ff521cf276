"""UTF-8 text of files, and where in them it is none."""

import codecs
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from regard.core.errors import DataError
from regard.files.reading import plain

_READ_BYTES = 1 << 20
"""read at a time"""

_UTF16 = "UTF-16 by its first two bytes; convert the file first, with iconv -f UTF-16 -t UTF-8"


def is_utf16(raw: bytes) -> bool:
    """Whether bytes begin as a file of UTF-16 does."""
    return raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def read_text(path: Path) -> str:
    """A file of UTF-8 text; errors as `chunks`."""
    return "".join(chunks(path))


def chunks(path: Path) -> Iterator[str]:
    """A file of UTF-8 text in pieces, without a byte order mark.

    Raises:
        DataError: it is missing, empty, binary or in another encoding.
    """
    at, raw = 0, b""
    with _opened(path) as file:
        while True:
            read = file.read(_READ_BYTES)
            raw += read
            if not raw and at == 0:
                raise DataError(f"{path} is empty: give a file with text in it")
            text, used = _decoded(raw, str(path), file, at, first=at == 0, final=not read)
            at, raw = at + used, raw[used:]
            yield text
            if not read:
                return


def documents(path: Path, separator: str | None) -> Iterator[Iterable[str]]:
    """The texts between separators in a file, without the empty ones; None: the file is one, in pieces. Memory: the
    longest text, and as much again; errors as `chunks`."""
    if separator is None:
        yield chunks(path)
        return
    left = more = ""
    for chunk in chunks(path):
        more += chunk
        if len(more) >= len(left):  # a long text is not searched again for every chunk
            *ended, left = (left + more).split(separator)
            more = ""
            yield from ([text] for text in ended if text)
    yield from ([text] for text in (left + more).split(separator) if text)


def lines(path: Path, span: tuple[int, int] | None = None) -> Iterator[str]:
    """The lines of a file of UTF-8 text, each with its end; without a byte order mark.

    Args:
        path: of the file.
        span: only the lines that begin from this byte up to that one; None: all.

    Raises:
        DataError: it is missing, binary or in another encoding.
    """
    with _opened(path) as file:
        at, stop = span or (0, None)
        if at:
            file.seek(at - 1)
            at += len(file.readline()) - 1
        behind = f" behind byte {at}" if at else ""
        for number, raw in enumerate(file, 1):
            if stop is not None and at >= stop:
                return
            yield decode(raw, f"{path}, line {number}{behind}", first=at == 0)
            at += len(raw)


def decode(raw: bytes, where: str, *, first: bool = True) -> str:
    """UTF-8 text, without the byte order mark that may be its first character. Never a guess at another encoding:
    wrong guesses train on rubbish.

    Raises:
        DataError: it is binary, or in another encoding.
    """
    return _decoded(raw, where, io.BytesIO(raw), first=first)[0]


def _decoded(
    raw: bytes, where: str, file: BinaryIO, at: int = 0, *, first: bool, final: bool = True
) -> tuple[str, int]:
    """The text of the bytes of a file behind the first `at`, and how many of them it takes: all, if they are final."""
    if first and is_utf16(raw):
        raise DataError(f"{where}: {_UTF16}")
    if b"\0" in raw:
        place = _place(file, at + raw.index(0))
        raise DataError(f"{where}: binary, with a zero byte{place}; regard reads UTF-8 text")
    try:
        text, used = codecs.utf_8_decode(raw, "strict", final)
    except UnicodeDecodeError as error:
        place = _place(file, at + error.start)
        raise DataError(
            f"{where}: no UTF-8: byte 0x{raw[error.start]:02x}{place} ({error.reason}); convert the file first, for "
            "example with iconv -f ENCODING -t UTF-8"
        ) from error
    return text.removeprefix("\ufeff") if first else text, used


def _place(file: BinaryIO, at: int) -> str:
    """Where a byte stands, as an editor counts: lines and their bytes from 1."""
    file.seek(0)
    number, begin, line = 1, 0, file.readline()
    while at >= begin + len(line):
        number, begin, line = number + 1, begin + len(line), file.readline()
    which = f" of line {number}" if number > 1 or file.read(1) else ""
    return f" at byte {at - begin + 1}{which}"


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with plain(path) as file:
            yield file
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
