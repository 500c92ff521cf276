"""File operations of this process, counted, so that something can happen before any one of them, or half-way."""

import builtins
import errno
import io
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
FILLING = frozenset({"open", "write", "mkdir", "fsync", "truncate", "rename"})
"""kinds of operations that a full disk refuses"""

Act = Callable[[int, str, str], None]
"""of the number of an operation, its kind and its path; raises or kills to stop it"""


class _Fatal(BaseException):
    """A write is to leave its half, and then this process is killed."""


class _File:
    """A file whose writes are counted; an act that stops one stops it half-way."""

    def __init__(self, file: Any, path: str, count: Act) -> None:
        self._file, self._path, self._count = file, path, count

    def write(self, data: Any) -> Any:
        try:
            self._count(0, "write", self._path)
        except _Fatal:
            self._half(data)
            os.kill(os.getpid(), signal.SIGKILL)
        except OSError:
            self._half(data)
            raise
        return self._file.write(data)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def truncate(self, *arguments: Any) -> Any:
        self._count(0, "truncate", self._path)
        return self._file.truncate(*arguments)

    def _half(self, data: Any) -> None:
        self._file.write(data[: len(data) // 2])
        self._file.flush()

    def __enter__(self) -> "_File":
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._file.__exit__(*error)

    def __iter__(self) -> Any:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def before_operations(act: Act, root: Path, *, only: str = "") -> None:
    """From now on `act` is called before every operation of Python's that changes files below a folder.

    Of these, only those whose path has some text in it, where one is given.

    Nothing takes it back: it is meant for a child that ends soon. What libraries write by themselves is not seen.
    """
    below, done = f"{os.path.realpath(root)}/", 0

    def count(_: int, kind: str, path: str) -> None:
        nonlocal done
        if only in path and f"{os.path.realpath(path)}/".startswith(below):
            done += 1
            act(done, kind, path)

    def of_path(function: Any, kind: str) -> Any:
        def counted(path: Any, *arguments: Any, **named: Any) -> Any:
            try:
                count(0, kind, _path(path))
            except _Fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(path, *arguments, **named)

        return counted

    opened, os_open = io.open, os.open

    def open_counted(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if not set("wax+") & set(mode):
            return opened(file, mode, *arguments, **named)
        path = _path(file)
        if not isinstance(file, int):
            count(0, "open", path)
        return _File(opened(file, mode, *arguments, **named), path, count)

    def os_open_counted(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        if flags & WRITING:
            count(0, "open", _path(path))
        return os_open(path, flags, *arguments, **named)

    io.open = builtins.open = open_counted  # type: ignore[assignment]
    os.open = os_open_counted  # type: ignore[assignment]
    kinds = {"fsync": "fsync", "ftruncate": "truncate", "truncate": "truncate", "rename": "rename", "replace": "rename"}
    kinds |= {"mkdir": "mkdir", "rmdir": "remove", "unlink": "remove", "remove": "remove", "write": "write"}
    for name, kind in kinds.items():
        setattr(os, name, of_path(getattr(os, name), kind))


def counted(report: Path) -> Act:
    """Write down the kind of every operation."""
    file = open(report, "a", buffering=1, encoding="utf-8")  # noqa: SIM115

    def act(number: int, kind: str, path: str) -> None:
        file.write(f"{kind} {path}\n")

    return act


def killed(wanted: int) -> Act:
    """Kill this process before its nth operation; a write when half of it is there."""

    def act(number: int, kind: str, path: str) -> None:
        if number == wanted and kind == "write":
            raise _Fatal
        if number >= wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    return act


def refused(number_wanted: int, error: int, *, for_good: bool) -> Act:
    """The nth operation, and all later ones where it is for good, fails as the system says it.

    A full disk refuses what fills it; one that may not be written refuses everything.
    """
    kinds = FILLING if error in (errno.ENOSPC, errno.EDQUOT) else FILLING | {"remove"}

    def act(number: int, kind: str, path: str) -> None:
        if kind in kinds and (number == number_wanted or (for_good and number > number_wanted)):
            raise OSError(error, os.strerror(error), path)

    return act


def signalled(wanted: int, number_of_signal: signal.Signals) -> Act:
    """A signal before the nth operation."""

    def act(number: int, kind: str, path: str) -> None:
        if number == wanted:
            signal.raise_signal(number_of_signal)

    return act


def read_in_an_order_of_its_own(rank: int) -> None:
    """Files give their tensors in an order of each process, as where each was started; forked ones would share one."""
    import safetensors.torch

    load = safetensors.torch.load

    def shuffled(data: bytes) -> dict[str, Any]:
        tensors = load(data)
        names = sorted(tensors)
        return {name: tensors[name] for name in random.Random(rank).sample(names, len(names))}

    safetensors.torch.load = shuffled


def _path(file: Any) -> str:
    if isinstance(file, int):
        try:
            return os.readlink(f"/proc/self/fd/{file}")
        except OSError:
            return "?"
    return os.fsdecode(file)
