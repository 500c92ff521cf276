"""Work in processes of their own: memory and timings are theirs alone, and none outlives the process that asked."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from regard.core import errors
from regard.core.errors import RegardError, ResourceError, out_of_memory
from regard.files import consent
from regard_lab.benchmark import quiet
from regard_lab.benchmark.timing import FIXED_ALLOCATION

GRACE_SECONDS = 5.0


def in_worker(
    module: str,
    payload: Any,
    *,
    threads: int,
    each: Callable[[Any], None] = lambda result: None,
) -> list[Any]:
    """Run `python -m module`, which calls `serve`, on a payload of plain data; both know the run's best calibration.

    Args:
        module: the module to run.
        payload: the data of its work.
        threads: OpenMP threads.
        each: called with every result as it comes.

    Returns:
        The results, in order.

    Raises:
        RegardError: the one that the work raised, with its class and message.
        KeyboardInterrupt: Ctrl-C, here or there.
        ResourceError: a signal ended the process.
        subprocess.CalledProcessError: it failed otherwise; its traceback went to our standard error.
    """
    environment = {**os.environ, **FIXED_ALLOCATION, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-P", "-m", module]  # -P: or the working folder comes first and hides what is installed
    results: list[Any] = []
    with _orderly():
        # Ctrl-C reaches parent and child. One that is still importing has no answer to it but a traceback, so it waits.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"payload": payload, "laps": quiet.best()}) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer = json.loads(line)
                quiet.seen(answer["laps"])
                if "error" in answer:
                    raise getattr(errors, answer["error"])(answer["message"])
                results.append(answer["result"])
                each(answer["result"])
            code = process.wait()
        finally:
            process.stdin.close()  # whatever is left there stops: see _end_with_parent
            process.stdout.close()
            process.wait()
    if code == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if code < 0:
        name = signal.Signals(-code).name
        hint = "; the system does that when memory runs out: use less of it" if name == "SIGKILL" else ""
        raise ResourceError(f"the process that ran {module} was ended by {name}{hint}")
    if code:
        raise subprocess.CalledProcessError(code, command)
    return results


def serve(work: Callable[[Any], Iterable[Any]]) -> int:
    """The other side of `in_worker`: give `work` the payload, send each result as it comes; the exit code."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see `in_worker`; one that waited comes here
        return _serve(work)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _serve(work: Callable[[Any], Iterable[Any]]) -> int:
    asked = json.loads(sys.stdin.readline())
    quiet.seen(asked["laps"])
    threading.Thread(target=_end_with_parent, args=(signal.getsignal(signal.SIGTERM),), daemon=True).start()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer

    def say(**answer: Any) -> None:
        try:
            print(json.dumps({**answer, "laps": quiet.best()}), file=answers, flush=True)
        except BrokenPipeError:  # who asked wants no more of it
            raise SystemExit(128 + signal.SIGTERM) from None

    try:
        for result in work(asked["payload"]):
            say(result=result)
    except RegardError as error:
        say(error=type(error).__name__, message=str(error))
        return error.exit_code
    except Exception as error:
        fault = consent.fault(error)
        if out_of_memory(error):
            fault = ResourceError(f"out of memory; use a smaller model, batch or length. {error}")
        if fault is None:
            raise
        say(error=type(fault).__name__, message=str(fault))
        return fault.exit_code
    return 0


def _end_with_parent(usual: object) -> None:
    """Standard input ends when the parent lets go of it, however it ended: then stop as on SIGTERM.

    A training answers SIGTERM with a checkpoint, once: Ctrl-C reaches parent and child, and a second signal would end
    the child before that checkpoint is written. So where `usual` answers, a training may be saving: it gets some time.
    """
    while os.read(0, 1):
        pass
    if signal.getsignal(signal.SIGTERM) == usual:
        time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _orderly() -> Iterator[None]:
    """Inside, SIGTERM leaves through `finally` blocks instead of ending this process on the spot."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous or signal.SIG_DFL)
