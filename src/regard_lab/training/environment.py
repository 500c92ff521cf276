"""What a run is computed with: its settings, and env.json, which says nothing about who or where."""

import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import regard
from regard.core.errors import CheckpointError
from regard.files.folders import write_json
from regard.files.reading import content
from regard_lab.training import random_states
from regard_lab.training.config import TrainingConfig


@contextmanager
def own_settings(device: torch.device, config: TrainingConfig) -> Iterator[None]:
    """Threads and random states are the run's inside the block, and the caller's again after it."""
    threads, states = torch.get_num_threads(), random_states.rng_states(device)
    try:
        if config.threads:
            torch.set_num_threads(config.threads)
        yield
    finally:
        torch.set_num_threads(threads)
        random_states.use_rng_states(states, device)


def record(path: Path, device: torch.device, threads: int) -> None:
    """Write env.json; of a run that goes on in another environment, add that one under `continued`.

    The same bits are promised for the same environment only: another torch or another number of threads may round
    otherwise, so such a change is on record.

    Raises:
        ResourceError: it cannot be written. CheckpointError: it is there and is no JSON object.
    """
    now = environment(device, threads)
    document = now
    if path.exists():
        try:
            document = json.loads(content(path))
            past = [{name: value for name, value in document.items() if name != "continued"}]
            past += document.get("continued", [])
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}; delete it to go on") from None
        if past[-1] == now:
            return
        document["continued"] = [*past[1:], now]
    write_json(path, document)


def environment(device: torch.device, threads: int) -> dict[str, object]:
    """Versions, platform, device, threads (0: torch's choice), and regard's git revision if it runs from a checkout."""
    return {
        "python": platform.python_version(),
        "versions": versions(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": threads or torch.get_num_threads(),
        "revision": _revision(),
    }


def versions() -> dict[str, str]:
    """Of regard and of what its numbers come from."""
    packages = ("torch", "numpy", "safetensors", "tokenizers")
    return {"regard": regard.__version__, **{name: importlib.metadata.version(name) for name in packages}}


def _revision() -> str | None:
    """The commit of the checkout that this file is tracked in, with `+` if it differs from it; None outside of one."""
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here.parent), *arguments], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    if git("ls-files", "--error-unmatch", here.name) is None:
        return None
    commit = git("rev-parse", "HEAD")
    return commit and commit + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
