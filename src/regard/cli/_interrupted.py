"""Ctrl-C and SIGTERM end a command through what tidies up, with one line that says what is left and how to go on."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_WAY = "nothing is left half-written; give the same command again"
"""of commands that have not more to say: what they write is there whole or not at all"""


class Terminated(KeyboardInterrupt):
    """SIGTERM came; what answers Ctrl-C answers it too."""


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM leaves as Ctrl-C does, and a second one ends this process on the spot.

    Where it is answered already, ignored, or is another thread's, nothing changes.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def leaving(way: Callable[[], str | None]) -> Iterator[None]:
    """Where a command is interrupted inside, `way` says what is left of it and how to go on; None: nothing special."""
    try:
        yield
    except KeyboardInterrupt as stop:
        said = way()
        if said is not None:
            stop.add_note(said)
        raise


def told(name: str, stop: KeyboardInterrupt) -> int:
    """Say that a command was interrupted; its exit code."""
    notes = getattr(stop, "__notes__", [_WAY])
    sys.stderr.write(f"{name}: interrupted; {notes[0]}\n")  # at once, where several processes say it
    sys.stderr.flush()
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)
