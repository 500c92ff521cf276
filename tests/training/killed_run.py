"""Run by test_resume.py as a program: trains CONFIG in RUN, continuing what is there, to be killed in many ways.

    killed_run.py CONFIG RUN                trains to the end
    killed_run.py CONFIG RUN operations     for K = 1, 2, ... until there is no Kth: a child in RUN.K kills itself
                                            before its Kth file operation, and another one finishes the run
    killed_run.py CONFIG RUN seconds S ...  per S: a child in RUN is killed after S seconds; a last one finishes it

Children are forks, so that torch is imported once. Leaves an uninterrupted run in RUN.whole. Prints one line per kill:
what became of the children.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from regard.training import toml, train

OPERATIONS = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate"}


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
    """Kill this process before it touches files of its run for the nth time."""
    done = 0
    fsync = os.fsync
    name = Path(run).name

    def count(what: str) -> None:
        nonlocal done
        done += 1
        if done == operation:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event in OPERATIONS and name in str(arguments[0]):
            count(event)

    def counted_fsync(file: int) -> None:
        count("fsync")
        fsync(file)

    os.fsync = counted_fsync
    sys.addaudithook(audit)


def main(config: str, run: str, how: str = "", *arguments: str) -> None:
    if how:
        train(toml.load(Path(config)), f"{run}.whole")  # imports what children would import one by one
    if how == "operations":
        number, died = 0, -signal.SIGKILL
        while died == -signal.SIGKILL:
            number += 1
            place = f"{run}.{number}"
            died = fate(child(config, place, partial(die_before, number, place)))
            print(number, died, fate(child(config, place)), flush=True)
        return
    for seconds in map(float, arguments):
        pid = child(config, run)
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        print(seconds, fate(pid), flush=True)
    train(toml.load(Path(config)), run, resume=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
