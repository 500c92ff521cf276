"""Files that are written: a name stands for the whole content, or for what it stood for before."""

import errno
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from regard.core.errors import ConfigError, ResourceError

_PARTIAL = re.compile(r"\..+\.[0-9a-f]{16}\.partial", re.DOTALL)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says against writing `path` into a ResourceError that names it."""
    try:
        yield
    except OSError as error:
        full = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "Free some space or choose")
        way = {errno.EWOULDBLOCK: "Wait for it or choose", **full}.get(error.errno or 0, "Choose")
        raise ResourceError(
            f"cannot write {path}: {error.strerror or error}. {way} a folder that can be written; what was saved "
            "before is intact"
        ) from error


def require_target(path: Path, *, folder: bool = False, new: bool = False) -> None:
    """Refuse a place where a file, or a `folder`, cannot be written, before the work that makes it.

    Folders above it need not exist. A `new` one must not exist.

    Raises:
        ConfigError: something is there, or something of another kind. ResourceError: it cannot be written.
    """
    with writing(path):
        if new and os.path.lexists(path):
            raise ConfigError(f"{path} exists; choose another name, or remove it: nothing is ever overwritten")
        if path.exists() and not (path.is_dir() if folder else path.is_file()):
            raise ConfigError(f"{path} is no {'folder' if folder else 'plain file'}; choose another name")
        above = path if folder else path.parent
        while not above.exists():
            above = above.parent
        with tempfile.TemporaryFile(dir=above):
            pass


@contextmanager
def new_file(target: Path) -> Iterator[BinaryIO]:
    """A file that becomes `target` at the end of the block, forced to disk; after a crash or an error all is as before.

    Every writer has one of its own: of several that write the same target, the last one wins with a whole file.

    Raises:
        ResourceError: it cannot be written.
    """
    with writing(target):
        if not target.parent.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
        with partial(target, lambda new: new.touch(exist_ok=False)) as path:
            with path.open("r+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(path, target)
            sync(target.parent)


def save_file(target: Path, data: bytes) -> None:
    """Write one file as `new_file` does.

    Raises:
        ResourceError: it cannot be written.
    """
    with new_file(target) as file:
        file.write(data)


@contextmanager
def partial(target: Path, make: Callable[[Path], object] = Path.mkdir) -> Iterator[Path]:
    """A folder, or file, that will be `target` and nobody else writes; removed at the end of the block unless renamed.

    It is locked as long as its process lives; what dead processes left in the same folder is removed first.
    """
    sweep(target.parent)
    with ExitStack() as stack:
        while True:
            path = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
            make(path)
            try:
                stack.enter_context(locked(path))
            except (BlockingIOError, FileNotFoundError):
                continue  # swept by another process before it was locked
            except OSError:
                pass  # a file system without locks, where nothing is swept
            stack.callback(discard, path)
            yield path
            return


def is_partial(path: Path) -> bool:
    """True if a file or folder is named as half-written ones are."""
    return _PARTIAL.fullmatch(path.name) is not None


def sweep(folder: Path) -> None:
    """Remove what dead processes left half-written in a folder."""
    for path in filter(is_partial, folder.glob(".*")):
        with suppress(OSError), locked(path):
            discard(path)


@contextmanager
def locked(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a file or folder until the end of the block, or of the process.

    Raises:
        BlockingIOError: somebody else holds it, or it was renamed meanwhile. OSError: it cannot be opened or locked.
    """
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(opened, how | fcntl.LOCK_NB)
            held = os.path.samestat(os.fstat(opened), os.stat(path))
        except (BlockingIOError, FileNotFoundError):
            held = False
        if not held:
            raise BlockingIOError(errno.EWOULDBLOCK, "another process or thread is writing it")
        yield
    finally:
        os.close(opened)


def discard(path: Path) -> None:
    """Remove what a killed process left, whatever it is; of a link the link, and nothing that it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """Force the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
