"""Commands in forked children of a process that has imported torch and regard: 20 milliseconds instead of seconds."""

import importlib
import os
import pkgutil
import resource
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

SECONDS = 120.0
"""on the clock, after which a child hangs that hardly did anything meanwhile; of a processor, after which any does"""
_BUSY = 1 / 200
"""share of that time for which a process runs that only waits for its turn"""
_PAGE = resource.getpagesize()
_ENDING = {signal.SIGTERM, signal.SIGINT}
_FAILED = 99
"""exit code of a child whose preparation failed, which is a defect of the campaign"""


@dataclass(frozen=True)
class Ended:
    """How a child ended.

    code: its exit code, negative for a signal. seconds: of a processor. wall: on the clock. peak: bytes that it had
    more than it began with, at most. hung: it was ended here.
    """

    code: int
    out: str
    err: str
    seconds: float
    wall: float
    peak: int
    hung: bool = False

    @property
    def traceback(self) -> bool:
        """Whether it showed one."""
        return any(line.startswith("Traceback (most recent call last)") for line in self.err.splitlines())

    @property
    def said(self) -> str:
        """The end of what it said, for a report."""
        return self.err.strip()[-300:] or self.out.strip()[-300:]


def warm() -> None:
    """Import what commands import, which children then need not do: they may be interrupted in the middle of it."""
    import torch._dynamo  # noqa: F401

    import regard
    import regard_lab

    for package in (regard, regard_lab):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "triton" not in module.name and not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def call(
    function: Callable[[], int],
    place: Path,
    *,
    before: Callable[[], None] = lambda: None,
    stop: tuple[float, signal.Signals] | None = None,
    memory: int | None = None,
    seconds: float = SECONDS,
) -> Ended:
    """Call a function in a forked child.

    Args:
        function: gives the exit code.
        place: its working folder.
        before: is called in the child first.
        stop: (seconds, signal): what it gets after that time; the function lets signals in (`command` does).
        memory: bytes of address space that it may take beside its parent's; None: any.
        seconds: after which it is killed where it did nothing on the clock, and of a processor in any case.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        reader, writer = os.pipe()
        # What is to get a signal waits for it from its birth on: before the command begins, nothing answers it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING if stop is not None else ())
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if pid == 0:
            os.write(writer, str(_resident()).encode())
            os.close(reader)
            os.close(writer)
            _child(function, place, before, memory, out, err)
        os.close(writer)
        had = int(os.read(reader, 99) or b"0")  # what a child begins with is less than its parent has
        os.close(reader)
        return _waited(pid, out, err, had, stop, seconds)


def command(words: Sequence[str], place: Path, **options: object) -> Ended:
    """`regard WORDS` in a forked child, as `call`."""

    def run() -> int:
        from regard.cli import main

        inner = main._run

        def met(words: list[str]) -> int:
            """Signals wait for the command itself: what is before and after it here is no part of it."""
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
            try:
                return inner(words)
            finally:
                signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)

        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        main._run = met
        return main.main(list(words))

    return call(run, place, **options)  # type: ignore[arg-type]


def _child(
    function: Callable[[], int],
    place: Path,
    before: Callable[[], None],
    memory: int | None,
    out: BinaryIO,
    err: BinaryIO,
) -> None:
    code = _FAILED
    try:
        os.setpgid(0, 0)
        os.chdir(place)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        before()
        if memory is not None:
            had = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
            resource.setrlimit(resource.RLIMIT_AS, (had + memory, had + memory))
        code = function()
    except BaseException:
        os.write(2, traceback.format_exc().encode())  # the streams may be what failed
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code & 0xFF)


def _waited(
    pid: int, out: BinaryIO, err: BinaryIO, had: int, stop: tuple[float, signal.Signals] | None, seconds: float
) -> Ended:
    began, hung = os.times().elapsed, False
    watched = os.pidfd_open(pid)
    try:
        if stop is not None and not select.select([watched], [], [], stop[0])[0]:
            os.kill(pid, stop[1])
        spent = 0.0
        while not select.select([watched], [], [], seconds)[0]:
            before, spent = spent, _spent(pid)
            if spent > seconds or spent - before < seconds * _BUSY:  # on a machine that is busy, slow is no hang
                hung = True
                os.kill(pid, signal.SIGKILL)
                break
        _, status, used = os.wait4(pid, 0)
    finally:
        os.close(watched)
        _end_group(pid)
    texts = []
    for file in (out, err):
        file.seek(0)
        texts.append(file.read().decode("utf-8", "replace"))
    return Ended(
        os.waitstatus_to_exitcode(status),
        *texts,
        seconds=used.ru_utime + used.ru_stime,
        wall=os.times().elapsed - began,
        peak=max(0, used.ru_maxrss * 1024 - had),
        hung=hung,
    )


def _spent(group: int) -> float:
    """Seconds of a processor that the processes of a group have taken, and those that they waited for."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[2]) == group:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _end_group(pid: int) -> None:
    """End what a child started and left behind."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
