"""The results of a run of the tests, kept so that the documentation of the same sources need not find it again."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import torch

import regard
from regard.files.writing import save_file


@cache
def sources() -> str:
    """A digest of every source file of the package and of torch's version."""
    root, digest = Path(regard.__file__).parent, hashlib.sha256(torch.__version__.encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def keep(folder: Path, name: str, found: Any) -> None:
    """Write what was found, as JSON.

    Args:
        folder: where; made if it is not there.
        name: of the file, without its suffix.
        found: anything that JSON holds.
    """
    save_file(folder / f"{name}.json", json.dumps({"sources": sources(), "found": found}).encode())


def kept(folder: Path, name: str) -> Any | None:
    """The result that `keep` wrote, if the sources have not changed since; else None."""
    path = folder / f"{name}.json"
    if not path.exists():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    return record["found"] if record["sources"] == sources() else None
