"""Signals and locks: how a run stops in good order, and why nobody else continues it meanwhile."""

import fcntl
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO

from regard.errors import ResourceError
from regard.training.files import open_own, writing


class Interrupted(SystemExit):
    """A run that a signal stopped after it had saved: leaves the process with exit code 128 + signal."""

    def __init__(self, received: signal.Signals, step: int) -> None:
        super().__init__(128 + received)
        self.signal = received
        self.step = step


class Signals:
    """Inside the block, the first SIGTERM or SIGINT is noted in `received`; a second one acts as it did before.

    One that nobody has answered with an exception by the end of the block acts then, so that none is swallowed. Python
    delivers signals to the main thread only: in other threads nothing is noted, nor is a signal that the process
    ignores.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._put_back()
        if self.received and kind is None:
            signal.raise_signal(self.received)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._put_back()

    def _put_back(self) -> None:
        while self._previous:
            number, handler = self._previous.popitem()
            signal.signal(number, handler)  # type: ignore[arg-type]


@contextmanager
def locked(run: Path, lock: Path | None = None) -> Iterator[None]:
    """Hold a run directory; the system lets go of it when the process ends, however it ends.

    Args:
        run: what is held.
        lock: the file that stands for it, in a folder that may become the run; None: `.lock` in the run.

    Raises:
        ResourceError: another process holds it. UnsafeFileError: the lock is a link.
    """
    path = run / ".lock" if lock is None else lock
    held = ResourceError(f"{run} is being trained by another process; wait for it or stop it")
    with writing(path):
        try:
            file = open(open_own(path, os.O_RDWR), "r+b")  # noqa: SIM115
        except FileNotFoundError:
            if lock is None:
                raise
            raise held from None  # by now the folder is another's run
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise held from None
        if lock is not None and not _names(lock, file):
            raise held
        yield


def _names(path: Path, file: IO[bytes]) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
