"""How many CPU threads a measurement takes unless it is told. Imports no torch."""

import os
import re

from regard.core.errors import ConfigError

VARIABLE = "OMP_NUM_THREADS"
MOST = 1024
"""CPU threads; the libraries below end the process where many more are asked for"""


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
        ConfigError: it is.
    """
    if count > MOST:
        raise ConfigError(f"threads must be at most {MOST}, got {count}")
