"""What two folders differ in that may not: runs, and whatever else a command leaves, bit for bit."""

import filecmp
import json
from dataclasses import replace
from pathlib import Path

from regard.training import begun
from regard.training.checkpoint import newest

TENSORS = ("model.safetensors", "optimizer.safetensors", "rng.safetensors", "memory.safetensors")


def lines(run: Path) -> list[dict[str, object]]:
    """metrics.jsonl without what is measured."""
    text = (run / "metrics.jsonl").read_text()
    if not text.endswith("\n"):
        raise ValueError(f"{run}/metrics.jsonl does not end with a line")
    return [{k: v for k, v in json.loads(line).items() if k not in ("timing", "sha256")} for line in text.splitlines()]


def runs(run: Path, whole: Path) -> list[str]:
    """Parameters, optimizer, random states, memories, schedule, data position, metrics and what was left behind."""
    ours, theirs = newest(run / "checkpoints")[0], newest(whole / "checkpoints")[0]
    if ours is None or theirs is None:
        return ["a run has no checkpoint"]
    # Not ``==`` of the contents: where CI is set, pytest explains that failure with a diff that takes minutes.
    found = [name for name in TENSORS if not _same(ours.path / name, theirs.path / name)]
    # The length of metrics.jsonl in bytes varies with the digits of the timings, and each run has an id of its own.
    if replace(ours.progress, metrics_bytes=0, run="") != replace(theirs.progress, metrics_bytes=0, run=""):
        found.append("progress.json")
    if (ours.progress.run, theirs.progress.run) != (begun.identity(run).id, begun.identity(whole).id):
        found.append("the id of the run")
    if lines(run) != lines(whole):
        found.append("metrics.jsonl")
    return found + leftovers(run)


def folders(folder: Path, whole: Path) -> list[str]:
    """Every file of the whole one, and none beside them."""
    names = {str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file()}
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    found = [name for name in sorted(names & there) if not _same(folder / name, whole / name)]
    return found + [f"{name} is missing" for name in sorted(names - there)] + leftovers(folder)


def leftovers(folder: Path) -> list[str]:
    """Half-written files and folders that nobody cleared away."""
    return [f"left: {path.name}" for end in ("partial", "removing") for path in folder.rglob(f"*.{end}")]


def _same(path: Path, other: Path) -> bool:
    if not path.exists() or not other.exists():
        return path.exists() == other.exists()
    return filecmp.cmp(path, other, shallow=False)
