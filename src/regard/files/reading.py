"""Files that are read whole. A pipe would be waited for, and a device has no end, so plain files only."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


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
        OSError: it cannot be opened, or is a folder, a pipe, a socket or a device.
    """
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
