"""Writing that survives a crash: a folder is there whole or not at all."""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from regard.errors import CheckpointError, ResourceError

MANIFEST = "manifest.json"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says against writing `path` into a ResourceError that names it."""
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"cannot write {path}: {error.strerror or error}. Free some space or choose a folder that can be written; "
            "what was saved before is intact"
        ) from error


def save_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Write a new folder of files with a manifest: it is there whole or, after a crash or an error, not at all.

    The order is what makes it so: files and manifest into a hidden folder beside the target, each forced to disk, then
    that folder, then one rename, then the parent.

    Raises:
        ResourceError: it cannot be written; nothing of it is left.
    """
    partial = target.parent / f".{target.name}.partial"
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if partial.exists():
            shutil.rmtree(partial)
        try:
            partial.mkdir()
            manifest = {name: {"sha256": _digest(data), "bytes": len(data)} for name, data in files.items()}
            for name, data in files.items():
                _write(partial / name, data)
            _write(partial / MANIFEST, (json.dumps({"files": manifest}, indent=1) + "\n").encode())
            _sync(partial)
            os.rename(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _sync(target.parent)


def save_file(target: Path, data: bytes) -> None:
    """Write one file, forced to disk and then named: it is there whole or, after a crash or an error, as before.

    Raises:
        ResourceError: it cannot be written.
    """
    partial = target.with_name(f".{target.name}.partial")
    with writing(target):
        try:
            _write(partial, data)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
        _sync(target.parent)


def load_folder(folder: Path, only: Collection[str] | None = None) -> dict[str, bytes]:
    """The files of a folder that `save_folder` wrote, each verified against the manifest.

    Args:
        folder: where.
        only: names of those to read; None: all.

    Raises:
        CheckpointError: a file is missing, has another size or another SHA-256; or there is no sound manifest.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())["files"]
        expected = {str(name): (str(entry["sha256"]), int(entry["bytes"])) for name, entry in manifest.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder}: no sound {MANIFEST} ({type(error).__name__}: {error})") from None
    files = {}
    for name, (sha256, size) in expected.items():
        if Path(name).name != name:
            raise CheckpointError(f"{folder}: {MANIFEST} names {name!r}, which is not a plain file name")
        if only is not None and name not in only:
            continue
        try:
            data = (folder / name).read_bytes()
        except OSError as error:
            raise CheckpointError(f"{folder}: cannot read {name}: {error.strerror or error}") from None
        if len(data) != size or _digest(data) != sha256:
            raise CheckpointError(f"{folder}: {name} is damaged ({len(data)} bytes, {size} expected; SHA-256 differs)")
        files[name] = data
    return files


def remove_folder(folder: Path) -> None:
    """Remove a folder. It leaves its name in one step, so that a crash cannot leave half of it under that name."""
    doomed = folder.parent / f".{folder.name}.removing"
    with writing(folder):
        shutil.rmtree(doomed, ignore_errors=True)
        os.rename(folder, doomed)
        shutil.rmtree(doomed)


def write_text(path: Path, text: str) -> None:
    """Write a text file, and its folder if need be; as `save_file` does."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    save_file(path, text.encode())


def write_json(path: Path, value: object) -> None:
    """Write plain data, as `write_text` does."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
