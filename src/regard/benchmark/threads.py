"""How many CPU threads a measurement takes unless it is told. Imports no torch."""

import os
import re

from regard.errors import ConfigError

VARIABLE = "OMP_NUM_THREADS"


def default_threads() -> int:
    """What OMP_NUM_THREADS says, as torch reads it; without it one thread for every core that this process may use.

    Raises:
        ConfigError: OMP_NUM_THREADS is no number of threads.
    """
    asked = os.environ.get(VARIABLE, "").strip()
    if not asked:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = re.fullmatch(r"(\d+)(\s*,\s*\d+)*", asked)  # a list is of nested levels, and the first one counts
    if found is None or int(found[1]) < 1:
        raise ConfigError(f"{VARIABLE} is {asked!r}, which is no number of threads: set it to 1 or more, or unset it")
    return int(found[1])
