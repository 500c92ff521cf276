"""env.json: what a run was computed with, and nothing about who or where."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import torch

import regard


def environment(device: torch.device) -> dict[str, object]:
    """Versions, platform, device, threads, and the git revision of regard if it runs from a checkout."""
    packages = ("torch", "numpy", "safetensors", "tokenizers")
    versions = {"regard": regard.__version__, **{name: importlib.metadata.version(name) for name in packages}}
    return {
        "python": platform.python_version(),
        "versions": versions,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "revision": _revision(),
    }


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
