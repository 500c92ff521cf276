"""Run by test_resume.py as a program: trains CONFIG in RUN, continuing what is there, to be killed in many ways.

    killed_run.py CONFIG RUN    for K = 1, 2, ... until there is no Kth: a child in RUN.K kills itself before its Kth
                                file operation, and another one finishes the run

Children are forks, so that torch is imported once. Leaves an uninterrupted run in RUN.whole. Prints one line per kill:
what became of the children.
"""

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from evidence.campaign import injected
from regard_lab.training import toml, train


def child(config: str, run: str, before: Callable[[], None] = lambda: None) -> int:
    """Fork a process that trains."""
    pid = os.fork()
    if pid == 0:
        before()
        try:
            train(toml.load(Path(config)), run, resume=True)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return pid


def fate(pid: int) -> int:
    """Exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die_before(operation: int, run: str) -> None:
    """Kill this process before it changes files of its run for the nth time."""
    place = Path(run)
    injected.before_operations(injected.killed(operation), place.parent, only=place.name)


def main(config: str, run: str) -> None:
    train(toml.load(Path(config)), f"{run}.whole")  # imports what children would import one by one
    number, died = 0, -signal.SIGKILL
    while died == -signal.SIGKILL:
        number += 1
        place = f"{run}.{number}"
        died = fate(child(config, place, partial(die_before, number, place)))
        print(number, died, fate(child(config, place)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
