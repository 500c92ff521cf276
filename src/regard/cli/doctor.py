"""Say what this machine and installation can do, and what is missing."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass

from regard import __version__
from regard.cli._output import console, emit, table

OPTIONAL = {
    "tensorboard": "regard train --tensorboard",
    "triton": "Triton kernels on a GPU",
    "transformers": "Hugging Face models",
    "faiss": "approximate datastores",
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
    screen = console()
    screen.print(table("what", "found", rows=[(key, value) for key, value in facts.items() if key != "optional"]))
    rows = [(name, entry["version"] or "not installed", entry["for"]) for name, entry in facts["optional"].items()]
    screen.print(table("optional package", "version", "what it is for", rows=rows))
    return 0


def findings() -> dict:
    """Versions, devices, memory, disk, and optional packages."""
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
        "optional": {
            name: {"version": version(name) if importlib.util.find_spec(name) else "", "for": use}
            for name, use in OPTIONAL.items()
        },
    }
