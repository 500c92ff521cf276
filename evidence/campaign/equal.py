"""What two folders differ in that may not: runs, and whatever else a command leaves, bit for bit."""

import filecmp
import json
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from regard_lab.training import begun
from regard_lab.training.checkpoint import newest

OF_THE_RUN = ("config.toml", "env.json", "manifest.json", "progress.json", "metrics.jsonl")
"""that hold the folder, the id, the checkout or the timings of a run, or checksums of files that do"""
LEFT = (".partial", ".removing")
"""endings of what is not whole yet, or not gone yet"""


def lines(run: Path) -> list[dict[str, object]]:
    """metrics.jsonl without what is measured."""
    text = (run / "metrics.jsonl").read_text()
    if not text.endswith("\n"):
        raise ValueError(f"{run}/metrics.jsonl does not end with a line")
    return [{k: v for k, v in json.loads(line).items() if k not in ("timing", "sha256")} for line in text.splitlines()]


def runs(run: Path, whole: Path) -> list[str]:
    """Every file: parameters, optimizer, random states, memories, schedule, data position, metrics; and what was left.

    How checkpoints are called, and which older ones are kept, depends on where a run was interrupted; of those that
    both have, the bits do not. An empty lock, `.begun`, stays where a kill meets the moment before it is removed.
    """
    ours, theirs = newest(run / "checkpoints")[0], newest(whole / "checkpoints")[0]
    if ours is None or theirs is None:
        return ["a run has no checkpoint"]
    # Not ``==`` of the contents: where CI is set, pytest explains that failure with a diff that takes minutes.
    found = _different(ours.path, theirs.path, but=OF_THE_RUN)
    # The length of metrics.jsonl in bytes varies with the digits of the timings, and each run has an id of its own.
    if replace(ours.progress, metrics_bytes=0, run="") != replace(theirs.progress, metrics_bytes=0, run=""):
        found.append("progress.json")
    if (ours.progress.run, theirs.progress.run) != (begun.id_of(run), begun.id_of(whole)):
        found.append("the id of the run")
    if lines(run) != lines(whole):
        found.append("metrics.jsonl")
    if _settings(run) != _settings(whole):
        found.append("config.toml")
    if (run / "env.json").exists() and _environments(run) != _environments(whole):
        found.append("env.json")
    return found + _different(run, whole, but=OF_THE_RUN, free=r"checkpoints/|\.begun$")


def folders(folder: Path, whole: Path) -> list[str]:
    """Every file of the whole one, and none beside them; or two files.

    Raises:
        ValueError: the whole one has no file, so that nothing would be compared.
    """
    if whole.is_file():
        return [] if _same(folder, whole) else [folder.name]
    return _different(folder, whole)


def _different(folder: Path, whole: Path, *, but: Collection[str] = (), free: str = "(?!)") -> list[str]:
    """Names of files with other bits, that are missing, beside them, or left.

    Args:
        but: names of files of which only whether they are there is compared.
        free: pattern of the beginnings of paths that may be in one alone.
    """
    names, there = _names(whole), _names(folder)
    if not names:
        raise ValueError(f"{whole} has no file to compare with")
    both = [name for name in sorted(names & there) if Path(name).name not in but]
    found = [name for name in both if not _same(folder / name, whole / name)]
    found += [f"{name} is missing" for name in sorted(names - there) if not re.match(free, name)]
    found += [f"{name} is beside them" for name in sorted(there - names) if not re.match(free, name)]
    return found + leftovers(folder)


def _names(folder: Path) -> set[str]:
    """Of all files below a folder, but those that are not whole yet or not gone yet."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in paths if not any(part.endswith(LEFT) for part in path.parts)}


def _settings(run: Path) -> list[str]:
    """The lines of config.toml that name no place."""
    text = (run / "config.toml").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if '= "/' not in line]


def _environments(run: Path) -> list[dict[str, object]]:
    """Those of env.json, one after the other, without the checkout, which the log of the campaign itself changes."""
    last = json.loads((run / "env.json").read_text())
    every = [last, *last.pop("continued", [])]
    for each in every:
        del each["revision"]
    return [each for at, each in enumerate(every) if at == 0 or each != every[at - 1]]


def leftovers(folder: Path) -> list[str]:
    """Half-written files and folders that nobody cleared away."""
    return [f"left: {path.name}" for end in LEFT for path in folder.rglob(f"*{end}")]


def _same(path: Path, other: Path) -> bool:
    if not path.is_file() or not other.is_file():
        return path.exists() == other.exists() and not path.is_file() and not other.is_file()
    return filecmp.cmp(path, other, shallow=False)
