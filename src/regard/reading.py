"""Files that are read whole. A pipe would be waited for, and a device has no end, so plain files only."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from regard.errors import ResourceError

SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""what the system says of the process that reads, and not of the file"""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Nobody takes a file for damaged, or for missing, because this process can open or map no more.

    Raises:
        ResourceError: it cannot, instead of the OSError that says so.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in SHORT:
            raise
        raise ResourceError(f"cannot read {path}: {error.strerror}; nothing was changed") from error


def found_in(folder: Path, ending: str = "") -> list[Path]:
    """What is in a folder under names with this ending, in their order.

    `Path.glob` finds nothing in a folder that it cannot read, from Python 3.12 on for whatever reason.

    Raises:
        OSError: the folder cannot be read.
    """
    return sorted(path for path in folder.iterdir() if path.name.endswith(ending))


def plain(path: Path) -> BufferedReader:
    """Open a plain file.

    Raises:
        OSError: it cannot be opened, or is a folder, a pipe, a socket or a device. ResourceError: as `reading`.
    """
    with reading(path):
        file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISREG(mode):
        return file
    file.close()
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is no plain file but a pipe, a socket or a device", str(path))


def content(path: Path) -> bytes:
    """The bytes of a plain file.

    Raises:
        OSError: as `plain`.
    """
    with plain(path) as file:
        return file.read()


def text(path: Path) -> str:
    """The UTF-8 text of a plain file.

    Raises:
        OSError: as `plain`. UnicodeDecodeError: it is something else.
    """
    return content(path).decode("utf-8")
