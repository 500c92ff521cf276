"""Writing that survives a crash: a folder is there whole or not at all."""

import errno
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from regard.core.errors import CheckpointError, ResourceError, UnsafeFileError
from regard.files import checksums
from regard.files.checksums import MANIFEST, Entry
from regard.files.reading import content
from regard.files.writing import discard, locked, partial, save_file, sync, writing

Read = TypeVar("Read")

MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EIO)
"""what the system says of files that are gone or damaged; anything else, such as no permission, says nothing of them"""


def save_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Write a new folder of files with a manifest: it is there whole or, after a crash or an error, not at all.

    The order is what makes it so: files and manifest into a hidden folder beside the target, each forced to disk, then
    that folder, then one rename, then the parent.

    Raises:
        ResourceError: it cannot be written, or is there; nothing of it is left.
    """
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial(target) as folder:
            entries: dict[str, Entry] = {}
            for name, data in files.items():
                path = folder / name
                if not path.resolve().is_relative_to(folder.resolve()):
                    raise UnsafeFileError(f"the file name {name!r} leads out of the folder {folder}")
                path.parent.mkdir(exist_ok=True)
                _write(path, data)
                if path.parent == folder:  # the manifest has no files of folders inside
                    entries[name] = Entry.of(data)
                else:
                    sync(path.parent)
            _write(folder / MANIFEST, (json.dumps(checksums.manifest(entries), indent=1) + "\n").encode())
            sync(folder)
            os.rename(folder, target)
        sync(target.parent)


def load_folder(folder: Path, only: Collection[str] | None = None) -> dict[str, bytes]:
    """The files of a folder that `save_folder` wrote, each verified against the manifest.

    Args:
        folder: where.
        only: names of those to read; None: all.

    Raises:
        CheckpointError: a file is missing, has another size or another SHA-256; or there is no sound manifest.
        ResourceError: one that is there cannot be read, which says nothing about what it holds.
    """
    chosen = {name: entry for name, entry in listed(folder).items() if only is None or name in only}
    return {name: load_file(folder / name, entry) for name, entry in chosen.items()}


def load_file(path: Path, entry: Entry) -> bytes:
    """A file, verified. Raises as `load_folder`."""
    data = _contents(path)
    _require(entry, Entry.of(data), path)
    return data


def listed(folder: Path) -> dict[str, Entry]:
    """What the manifest of a folder says of its files. Raises as `load_folder`."""
    try:
        return checksums.entries(json.loads(_contents(folder / MANIFEST)))
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from None


def _require(entry: Entry, found: Entry, path: Path) -> None:
    try:
        entry.require(found, path.name)
    except ValueError as error:
        raise CheckpointError(f"{path.parent}: {error}") from None


def remove_folder(folder: Path) -> None:
    """Remove a folder. It leaves its name in one step, so that a crash cannot leave half of it under that name."""
    doomed = folder.parent / f".{folder.name}.removing"
    with writing(folder):
        discard(doomed)
        os.rename(folder, doomed)
        discard(doomed)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Nobody else writes inside.

    Raises:
        ResourceError: somebody else does, or the folder cannot be opened.
    """
    with ExitStack() as stack:
        with writing(folder):
            stack.enter_context(locked(folder.resolve()))
        yield


def _contents(path: Path) -> bytes:
    return _read(path, content)


def _read(path: Path, how: Callable[[Path], Read]) -> Read:
    try:
        return how(path)
    except OSError as error:
        said = f"{path.parent}: cannot read {path.name}: {error.strerror or error}"
        if error.errno in MISSING:
            raise CheckpointError(said) from None
        raise ResourceError(f"{said}; nothing was changed") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file as `save_file` does."""
    save_file(path, text.encode())


def write_json(path: Path, value: object) -> None:
    """Write plain data, as `write_text` does."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
