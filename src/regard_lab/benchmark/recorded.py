"""What the results of a measurement say beside its numbers."""

import os
import platform
import time
from dataclasses import asdict
from typing import Any

import torch

from regard import __version__
from regard_lab.benchmark.plain import plain
from regard_lab.training.environment import environment


def recorded(form: str, plan: Any, begun: float, **found: object) -> dict[str, Any]:
    """What was found, as plain data, with the plan, the version and the machine; `begun`: by `time.perf_counter`."""
    facts = {"format": form, "version": __version__, "created": now(), "seconds": time.perf_counter() - begun}
    return plain({**facts, "plan": asdict(plan), **found, "environment": environment(torch.device("cpu"), 0)})


def now() -> str:
    """The time, with its zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def machine(threads: int) -> dict[str, object]:
    """The processor, and what runs on it."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": threads,
    }
