"""UTF-8 text of files, and where in them it is none."""

import codecs
from collections.abc import Iterator
from pathlib import Path

from regard.errors import DataError
from regard.reading import content, plain

_READ_BYTES = 1 << 20
"""at a time, at least, of a file that is not read whole"""


_UTF16 = "UTF-16 by its first two bytes; convert the file first, with iconv -f UTF-16 -t UTF-8"


def is_utf16(raw: bytes) -> bool:
    """Whether bytes begin as a file of UTF-16 does."""
    return raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def read_text(path: Path) -> str:
    """A file of UTF-8 text.

    Raises:
        DataError: it is missing, empty, binary or in another encoding.
    """
    try:
        raw = content(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if not raw:
        raise DataError(f"{path} is empty: give a file with text in it")
    return decode(raw, str(path))


def lines(path: Path, span: tuple[int, int] | None = None) -> Iterator[str]:
    """The lines of a file of UTF-8 text, each with its end; without a byte order mark.

    Args:
        path: of the file.
        span: only the lines that begin from this byte up to that one; None: all.

    Raises:
        DataError: it is missing, binary or in another encoding.
    """
    try:
        file = plain(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    with file:
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


def parts(path: Path, separator: str) -> Iterator[str]:
    """The texts between separators in a file of UTF-8 text, as `read_text(path).split(separator)` has them, without the
    empty ones. Memory: the longest text, and as much again.

    Raises:
        DataError: it is missing, empty, binary or in another encoding.
    """
    try:
        file = plain(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    decoder, at, left = codecs.getincrementaldecoder("utf-8")(), 0, ""
    with file:
        while raw := file.read(max(_READ_BYTES, len(left))):
            left += _decoded(decoder, raw, at, path)
            left = left.removeprefix("\ufeff") if at == 0 else left
            at += len(raw)
            *whole, left = left.split(separator)
            yield from filter(None, whole)
        if at == 0:
            raise DataError(f"{path} is empty: give a file with text in it")
        _decoded(decoder, b"", at, path)
    if left:
        yield left


def _decoded(decoder: codecs.IncrementalDecoder, raw: bytes, at: int, path: Path) -> str:
    """The text of the next bytes; none are the end."""
    if at == 0 and is_utf16(raw):
        raise DataError(f"{path}: {_UTF16}")
    if b"\0" in raw:
        raise DataError(f"{path}: binary, with a zero byte behind byte {at + raw.index(0)}; regard reads UTF-8 text")
    begun = len(decoder.getstate()[0])
    try:
        return decoder.decode(raw, final=not raw)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: no UTF-8: behind byte {at - begun + error.start} ({error.reason}); convert the file first, for "
            "example with iconv -f ENCODING -t UTF-8"
        ) from error


def decode(raw: bytes, where: str, *, first: bool = True) -> str:
    """UTF-8 text, without the byte order mark that may be its first character. Never a guess at another encoding:
    wrong guesses train on rubbish.

    Raises:
        DataError: it is binary, or in another encoding.
    """
    if first and is_utf16(raw):
        raise DataError(f"{where}: {_UTF16}")
    if b"\0" in raw:
        raise DataError(f"{where}: binary, with a zero byte{_place(raw, raw.index(0))}; regard reads UTF-8 text")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: no UTF-8: byte 0x{raw[error.start]:02x}{_place(raw, error.start)} ({error.reason}); convert the "
            f"file first, for example with iconv -f ENCODING -t UTF-8"
        ) from error
    return text.removeprefix("\ufeff") if first else text


def _place(raw: bytes, at: int) -> str:
    """Where a byte stands, as an editor counts: lines and their bytes from 1."""
    before = raw[:at]
    line = f" of line {before.count(10) + 1}" if b"\n" in raw.removesuffix(b"\n") else ""
    return f" at byte {at - before.rfind(10)}{line}"
