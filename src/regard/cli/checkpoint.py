"""List, verify or export the checkpoints of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from regard.cli._output import console, emit, table
from regard.errors import CheckpointError, ConfigError


@dataclass(frozen=True)
class Options:
    """What to do with the checkpoints of a run."""

    action: tyro.conf.Positional[Literal["list", "verify", "export"]]
    """list: what there is; verify: every file against its SHA-256, exit 4 if one is damaged; export: the weights of the
    newest sound one as safetensors"""
    run: tyro.conf.Positional[str]
    """directory of a run"""
    out: str | None = None
    """export: the new .safetensors file"""
    json: bool = False
    """machine output on stdout"""


def run(options: Options) -> int:
    """Do it."""
    from regard.training import checkpoint

    folder = Path(options.run) / "checkpoints"
    if not (Path(options.run) / "config.toml").exists():
        raise ConfigError(f"{options.run} is not a run: it has no config.toml")
    if options.action == "export":
        if options.out is None:
            raise ConfigError("export needs --out FILE.safetensors")
        found, _ = checkpoint.newest(folder)
        if found is None:
            raise CheckpointError(f"{options.run} has no checkpoint yet")
        checkpoint.export(found.path, Path(options.out))
        console(machine=options.json).print(f"{found.path} -> {options.out}", markup=False)
        return 0
    rows, damaged = [], 0
    for path in checkpoint.paths(folder):
        size = sum(file.stat().st_size for file in path.iterdir())
        state = "not verified"
        if options.action == "verify":
            try:
                checkpoint.load(path)
                state = "sound"
            except CheckpointError as error:
                damaged, state = damaged + 1, f"damaged: {error}"
        rows.append((path.name, f"{size:,}", state))
    if options.json:
        emit([dict(zip(("checkpoint", "bytes", "state"), row, strict=True)) for row in rows])
    else:
        console().print(table("checkpoint", "bytes", "state", rows=rows))
    return CheckpointError.exit_code if damaged else 0
