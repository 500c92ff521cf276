"""How many CPU threads a measurement takes unless it is told. Imports no torch."""

import os
import re
from pathlib import Path

from regard.errors import ConfigError, ResourceError

VARIABLE = "OMP_NUM_THREADS"
MOST = 1024
"""CPU threads; the libraries below end the process where many more are asked for"""
STACK = 8 << 20
"""bytes that a thread reserves for its stack, where nobody says otherwise"""


def default_threads() -> int:
    """What OMP_NUM_THREADS says, as torch reads it; without it one thread for every core that this process may use.

    Raises:
        ConfigError: OMP_NUM_THREADS is no number of threads.
    """
    asked = os.environ.get(VARIABLE, "").strip()
    if not asked:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = re.fullmatch(r"(\d+)(\s*,\s*\d+)*", asked)  # a list is of nested levels, and the first one counts
    if found is None or not 1 <= int(found[1][:9]) <= MOST:
        raise ConfigError(
            f"{VARIABLE} is {asked!r}, which is no number of threads: set it to a number from 1 to {MOST}, or unset it"
        )
    return int(found[1])


def require_threads(count: int) -> None:
    """Refuse more threads than a process takes: the libraries below end one that cannot begin them.

    Raises:
        ConfigError: it is. ResourceError: their stacks do not fit into the memory that this process may have.
    """
    if count > MOST:
        raise ConfigError(f"threads must be at most {MOST}, got {count}")
    room, more = _room(), count - 1  # the thread that asks has its stack
    if room is not None and more * STACK > room:
        raise ResourceError(
            f"the stacks of {more} more threads take {more * STACK >> 20} MiB of memory, and this process may have "
            f"{room >> 20} MiB (ulimit -v); ask for fewer threads"
        )


def _room() -> int | None:
    """Bytes of address space that this process may still take; None: as many as it likes."""
    try:
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most == resource.RLIM_INFINITY:
            return None
        return max(most - int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize(), 0)
    except (ImportError, OSError):  # a system that has no such limit, or does not say what is taken
        return None
