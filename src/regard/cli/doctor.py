"""Say what this machine and installation can do, and what is missing."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass

from regard import __version__
from regard.cli._output import emit, say, table

OPTIONAL = {
    "tensorboard": "regard train --tensorboard",
    "triton": "Triton kernels on a GPU",
    "transformers": "Hugging Face models",
}
GIB = 2**30


@dataclass(frozen=True)
class Options:
    """How to answer."""

    json: bool = False
    """machine output on stdout"""


def run(options: Options) -> int:
    """Print what was found."""
    facts = findings()
    if options.json:
        emit(facts)
        return 0
    apart = ("optional", "extras")
    say(table("what", "found", rows=[(key, value) for key, value in facts.items() if key not in apart]))
    extras = [
        (name, "installed" if not each["missing"] else "missing: " + ", ".join(each["missing"]), each["install"])
        for name, each in facts["extras"].items()
    ]
    say(table("extra", "state", "install it with", rows=extras))
    rows = [(name, entry["version"] or "not installed", entry["for"]) for name, entry in facts["optional"].items()]
    say(table("optional package", "version", "what it is for", rows=rows))
    return 0


def findings() -> dict:
    """Versions, devices, memory, disk, extras and optional packages."""
    import torch

    def version(package: str) -> str:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return ""

    cuda = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    packages = ("numpy", "safetensors", "jaxtyping", "tyro", "pydantic", "rich", "jinja2", "plotly", "tokenizers")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "regard": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "torch": torch.__version__,
        **{name: version(name) for name in packages},
        "cpu": f"{os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}",
        "threads": f"{torch.get_num_threads()} used by torch",
        "memory": f"{memory / GIB:.1f} GiB",
        "free disk here": f"{shutil.disk_usage('.').free / GIB:.1f} GiB",
        "cuda": ", ".join(cuda) or "none",
        "mps": "yes" if torch.backends.mps.is_available() else "no",
        "compiler for torch.compile": next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None) or "none",
        "extras": extras(),
        "optional": {
            name: {"version": version(name) if importlib.util.find_spec(name) else "", "for": use}
            for name, use in OPTIONAL.items()
        },
    }


def extras() -> dict[str, dict]:
    """Every extra of the installed package: its requirements, those that are not met, and how to install it."""
    try:
        found = importlib.metadata.metadata("regard")
    except importlib.metadata.PackageNotFoundError:  # its sources alone are on the path
        return {}
    needed: dict[str, list[str]] = {name: [] for name in found.get_all("Provides-Extra") or ()}
    for text in importlib.metadata.requires("regard") or ():
        requirement, _, marker = text.partition(";")
        named = re.search(r"""extra\s*==\s*["']([^"']+)["']""", marker)
        if named is not None:
            needed[named[1]].append(requirement.strip())
    return {
        name: {
            "requires": requirements,
            "missing": [each for each in requirements if not _installed(each)],
            "install": f"pip install 'regard[{name}]'",
        }
        for name, requirements in needed.items()
    }


def _installed(requirement: str) -> bool:
    """Whether a package is there, in the version that is asked for: `name>=1.2`."""
    name, _, least = requirement.partition(">=")
    try:
        there = importlib.metadata.version(name.strip())
    except importlib.metadata.PackageNotFoundError:
        return False
    return [int(x) for x in re.findall(r"\d+", there)] >= [int(x) for x in re.findall(r"\d+", least)]
