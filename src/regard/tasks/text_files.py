"""UTF-8 text of files, and where in them it is none."""

from collections.abc import Iterator
from pathlib import Path

from regard.errors import DataError
from regard.reading import content, plain


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


def lines(path: Path) -> Iterator[str]:
    """The lines of a file of UTF-8 text, each with its end; without a byte order mark.

    Raises:
        DataError: it is missing, binary or in another encoding.
    """
    try:
        file = plain(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    with file:
        for number, raw in enumerate(file, 1):
            yield decode(raw, f"{path}, line {number}", first=number == 1)


def decode(raw: bytes, where: str, *, first: bool = True) -> str:
    """UTF-8 text, without the byte order mark that may be its first character. Never a guess at another encoding:
    wrong guesses train on rubbish.

    Raises:
        DataError: it is binary, or in another encoding.
    """
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
