"""Signals and locks: how a run stops in good order, and why nobody else continues it meanwhile."""

import fcntl
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

from regard.core.errors import ResourceError
from regard.files.folders import writing


class Interrupted(SystemExit):
    """A run that a signal stopped after it had saved: leaves the process with exit code 128 + signal."""

    def __init__(self, received: signal.Signals, step: int) -> None:
        super().__init__(128 + received)
        self.signal = received
        self.step = step


class Signals:
    """Inside the block, the first SIGTERM, SIGINT or SIGHUP is noted in `received`; a second one acts as it did before.

    Not so a second SIGHUP: a terminal that is closed sends several. One that nobody has answered with an exception by
    the end of the block acts then, so that none is swallowed. Python delivers signals to the main thread only: in other
    threads nothing is noted, nor is a signal that the process ignores.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._put_back(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        if self.received and kind is None:
            signal.raise_signal(self.received)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._put_back(signal.SIGTERM, signal.SIGINT)

    def _put_back(self, *numbers: int) -> None:
        for number in numbers:
            handler = self._previous.pop(number, None)  # at once: a second SIGHUP may come between any two steps
            if handler is not None:
                signal.signal(number, handler)  # type: ignore[arg-type]


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold a run directory; the system lets go of it when the process ends, however it ends.

    Raises:
        ResourceError: another process holds it.
    """
    path = run / ".lock"
    with writing(path):
        file = path.open("ab")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResourceError(f"{run} is being trained by another process; wait for it or stop it") from None
        yield
