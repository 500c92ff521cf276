"""Checksums of what a later command believes.

A JSON object carries the SHA-256 of its own content (`sealed`, `opened`); a folder of other files has one such object
with that of every file (`MANIFEST`). Who reads them says what is to be done about damage, so these functions raise
ValueError with the reason alone.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from regard.files.reading import content, plain

KEY = "sha256"
MANIFEST = "manifest.json"


class Entry(NamedTuple):
    """What a manifest says of a file."""

    sha256: str
    size: int

    @classmethod
    def of(cls, data: bytes) -> "Entry":
        """Of these contents."""
        return cls(hashlib.sha256(data).hexdigest(), len(data))

    @classmethod
    def at(cls, path: Path) -> "Entry":
        """Of the contents of a file, which may be larger than the memory."""
        with plain(path) as file:
            digest = hashlib.file_digest(file, "sha256")
            return cls(digest.hexdigest(), file.tell())

    def require(self, found: "Entry", name: str) -> None:
        """Refuse other contents.

        Raises:
            ValueError: size or checksum differ.
        """
        if found != self:
            raise ValueError(f"{name} is damaged ({found.size} bytes, {self.size} expected; SHA-256 differs)")


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its checksum, which `opened` takes off again.

    Example:
        >>> opened(json.dumps(sealed({"loss": 0.5})))
        {'loss': 0.5}
    """
    plain = json.loads(json.dumps({name: value for name, value in document.items() if name != KEY}))
    return {**plain, KEY: _digest(plain)}


def opened(text: str | bytes) -> dict[str, Any]:
    """The JSON object that `sealed` gave, without its checksum.

    Args:
        text: what was written.

    Raises:
        ValueError: no JSON object, none with a checksum, or one whose content is another.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"it holds {type(document).__name__}, not an object")
    written = document.pop(KEY, None)
    if written is None:
        raise ValueError("it has no checksum")
    if written != _digest(document):
        raise ValueError("its checksum differs from its content")
    return document


def manifest(entries: Mapping[str, Entry]) -> dict[str, Any]:
    """The manifest of files, by name."""
    return {"files": {name: {"sha256": entry.sha256, "bytes": entry.size} for name, entry in entries.items()}}


def entries(document: object) -> dict[str, Entry]:
    """What a manifest says.

    Raises:
        ValueError: it is none, or names a file outside its folder.
    """
    try:
        files: Any = document["files"]  # type: ignore[index]
        found = {plain_name(name): Entry(str(entry["sha256"]), entry["bytes"]) for name, entry in files.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no sound {MANIFEST} ({type(error).__name__}: {error})") from None
    return found


def plain_name(name: str) -> str:
    """A name that a file of a stranger gives to one beside it.

    Raises:
        ValueError: it is the name of a file elsewhere.
    """
    if Path(name).name != name or "\0" in name:
        raise ValueError(f"{name!r} is not a plain file name")
    return name


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Write the manifest of files that are in a folder.

    Raises:
        OSError: a file cannot be read, or the manifest not written.
    """
    described = manifest({name: Entry.at(folder / name) for name in names})
    (folder / MANIFEST).write_text(json.dumps(sealed(described), indent=1) + "\n", encoding="utf-8")


def verify(folder: Path, names: Collection[str]) -> None:
    """Compare files of a folder with its manifest.

    Raises:
        OSError: one cannot be read. ValueError: one is another than was written, or the manifest has not all of them.
    """
    try:
        expected = entries(opened(content(folder / MANIFEST)))
    except ValueError as error:
        raise ValueError(f"{MANIFEST}: {error}") from None
    missing = set(names) - expected.keys()
    if missing:
        raise ValueError(f"{MANIFEST} does not name {', '.join(sorted(missing))}")
    for name in names:
        expected[name].require(Entry.at(folder / name), name)


def _digest(document: Mapping[str, Any]) -> str:
    """Of the content: spaces and the order of names are no part of it."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
