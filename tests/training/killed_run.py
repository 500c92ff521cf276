"""Run by test_resume.py as a program: trains CONFIG in RUN, continuing what is there, to be killed in many ways.

    killed_run.py CONFIG RUN                trains to the end
    killed_run.py CONFIG RUN operations     for K = 1, 2, ... until there is no Kth: a child in RUN.K kills itself
                                            before its Kth file operation, and another one finishes the run
    killed_run.py step K CONFIG RUN ...     per CONFIG and RUN: a child kills itself after step K, another finishes it

Children are forks, so that torch is imported once. Leaves an uninterrupted run in RUN.whole. Prints one line per kill:
what became of the children.
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from evidence.campaign import injected
from regard_lab.training import toml, train


def child(
    config: str,
    run: str,
    before: Callable[[], None] = lambda: None,
    after: Callable[[Mapping[str, object]], None] | None = None,
) -> int:
    """Fork a process that trains."""
    pid = os.fork()
    if pid == 0:
        before()
        try:
            train(toml.load(Path(config)), run, resume=True, on_progress=after)
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


def die_after(step: int, event: Mapping[str, object]) -> None:
    """Kill this process when a step is over."""
    if event["kind"] == "step" and event["step"] == step:
        os.kill(os.getpid(), signal.SIGKILL)


def steps(step: int, *given: str) -> None:
    for config, run in zip(given[::2], given[1::2], strict=True):
        train(toml.load(Path(config)), f"{run}.whole")  # imports what children would import one by one
        killed = fate(child(config, run, after=partial(die_after, step)))
        print(step, killed, fate(child(config, run)), flush=True)


def main(config: str, run: str, how: str = "") -> None:
    if how == "operations":
        train(toml.load(Path(config)), f"{run}.whole")  # imports what children would import one by one
        number, died = 0, -signal.SIGKILL
        while died == -signal.SIGKILL:
            number += 1
            place = f"{run}.{number}"
            died = fate(child(config, place, partial(die_before, number, place)))
            print(number, died, fate(child(config, place)), flush=True)
        return
    if how:
        raise ValueError(how)
    train(toml.load(Path(config)), run, resume=True)


if __name__ == "__main__":
    if sys.argv[1] == "step":
        steps(int(sys.argv[2]), *sys.argv[3:])
    else:
        main(*sys.argv[1:])
