"""List, verify or export the checkpoints of a run."""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from regard.core.errors import CheckpointError, ConfigError
from regard.files.checksums import MANIFEST, entries
from regard.files.reading import content
from regard_lab.cli._options import Json
from regard_lab.cli._output import console, emit, table, will_write


@dataclass(frozen=True)
class Options:
    """An action on the checkpoints of a run."""

    action: tyro.conf.Positional[Literal["list", "verify", "export"]]
    """list: all of them; verify: every file against its SHA-256, the run that it is of, and what that began with, exit
    4 if one is damaged or another's; export: the weights of the newest sound one as safetensors"""
    run: tyro.conf.Positional[str]
    """directory of a run"""
    out: str | None = None
    """export: the new .safetensors file"""
    json: Json = False


def run(options: Options) -> int:
    """Do it."""
    if not (Path(options.run) / "config.toml").exists():
        raise ConfigError(f"{options.run} is not a run: it has no config.toml. Start one with regard train")
    if options.action == "export":
        return _export(options)
    if options.out is not None:
        raise ConfigError(f"{options.action} writes nothing: --out is for export")
    return _shown(options)


def _export(options: Options) -> int:
    from regard_lab.training import begun, checkpoint
    from regard_lab.training.identity import require_own

    if options.out is None:
        raise ConfigError("export needs --out FILE.safetensors")
    will_write(options.out, new=True)
    newest, _ = checkpoint.newest(Path(options.run) / "checkpoints")
    if newest is None:
        raise CheckpointError(f"{options.run} has no checkpoint yet; continue it with regard train --resume")
    require_own(newest, Path(options.run), begun.id_of(Path(options.run)))
    checkpoint.export(newest, Path(options.out))
    if options.json:
        emit({"checkpoint": str(newest.path), "out": options.out})
    else:
        console().print(f"{newest.path} -> {options.out}", markup=False)
    return 0


def _size(path: Path) -> int:
    """Bytes of the files that a checkpoint names; of one whose manifest is damaged those of whatever is there."""
    try:
        return sum(entry.size for entry in entries(json.loads(content(path / MANIFEST))).values())
    except (OSError, ValueError):
        return sum(file.stat().st_size for file in path.glob("*"))


def _shown(options: Options) -> int:
    from regard_lab.training import begun, checkpoint
    from regard_lab.training.identity import require_own

    rows: list[tuple[str, int, str]] = []
    damaged = False
    run_id: str | None = None
    if options.action == "verify":
        with suppress(CheckpointError):  # a damaged manifest is told below, and says of no checkpoint whose it is
            run_id = begun.id_of(Path(options.run))
    for path in checkpoint.paths(Path(options.run) / "checkpoints"):
        state = "not verified"
        if options.action == "verify":
            try:
                saved = checkpoint.load(path)
                if run_id is not None:
                    require_own(saved, Path(options.run), run_id)
                state = "sound"
            except CheckpointError as error:
                state = f"damaged: {error}"
        size = _size(path)
        if os.path.lexists(path):  # or who trains the run has removed it meanwhile
            rows.append((path.name, size, state))
            damaged |= state.startswith("damaged")
    if options.json:
        emit([dict(zip(("checkpoint", "bytes", "state"), row, strict=True)) for row in rows])
    elif rows:
        shown = [(name, f"{size:,}", state) for name, size, state in rows]
        console().print(table("checkpoint", "bytes", "state", rows=shown))
    else:
        console().print(f"{options.run} has no checkpoint yet", markup=False)
    if options.action == "verify":
        begun.require(Path(options.run))
    return CheckpointError.exit_code if damaged else 0
