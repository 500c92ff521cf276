"""The files of a comparison: each job leaves its result in one, which a later call reads."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.core.errors import CheckpointError, RegardError, ResourceError
from regard.files.checksums import opened, sealed
from regard.files.folders import write_json
from regard.files.reading import content


def read(path: Path, way_out: str) -> dict[str, Any]:
    """What an earlier call wrote, verified."""
    try:
        return opened(content(path))
    except OSError as error:
        raise ResourceError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}; {way_out}") from error


def result(path: Path) -> Any:
    """The result that a finished job left."""
    return read(path, "remove it, and only that job is repeated")["result"]


def write(path: Path, found: object) -> None:
    """Leave the result of a job."""
    write_json(path, sealed({"result": found}))


def kept(out: Path, name: str, make: Callable[[], Any], tell: Callable[[str], None], label: str) -> Any:
    """A job's result, from its file if it ended before."""
    path = out / "jobs" / f"{name}.json"
    if path.exists():
        return result(path)
    began = time.perf_counter()
    try:
        found = json.loads(json.dumps(make()))
    except RegardError as error:
        error.args = (f"{label}: {error}",)
        raise
    write(path, found)
    tell(f"{label}: {time.perf_counter() - began:.0f} s")
    return found
