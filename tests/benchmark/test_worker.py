"""Work in processes of their own: answers, errors, signals, and that none is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regard.core.errors import NumericsError, ResourceError
from regard_lab.benchmark import quiet
from regard_lab.benchmark.timing import FIXED_ALLOCATION
from regard_lab.benchmark.worker import in_worker

WORKER = """
import os, signal, sys, time
from regard_lab.benchmark.worker import serve
from regard.core import errors

def work(payload):
    kind = payload["kind"]
    yield {"pid": os.getpid()}
    if kind == "calibrates":
        from regard_lab.benchmark import quiet
        yield quiet.best()
        quiet.seen({-2: 0.25})
        yield None
    if kind == "echo":
        print("a library says something")
        yield payload["value"]
        yield dict(os.environ)
    elif kind == "error":
        raise getattr(errors, payload["name"])(payload["message"])
    elif kind == "bug":
        raise KeyError("gone")
    elif kind == "memory":
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    elif kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "saves":
        # As a training: the first signal is noted, the second acts as before, and something is saved before the end.
        noted = []
        previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        def note(number, frame):
            noted.append(number)
            for number, handler in previous.items():
                signal.signal(number, handler)
        for number in previous:
            signal.signal(number, note)
        open(payload["path"] + ".ready", "w").close()
        while not noted:
            time.sleep(0.01)
        time.sleep(0.3)
        open(payload["path"], "w").close()
        raise SystemExit(143)

sys.exit(serve(work))
"""


@pytest.fixture
def worker(tmp_path, monkeypatch) -> str:
    (tmp_path / "some_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2] / "src")]))
    return "some_worker"


def ask(worker, each=lambda result: None, **payload):
    return in_worker(worker, payload, threads=1, each=each)


def gone(pid: int, seconds: float = 20.0) -> bool:
    """Whether a process ends in time; one that waits for its parent to look at it counts as ended."""
    until = time.monotonic() + seconds
    while True:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.02)


def test_results_come_in_order_and_as_they_are(worker, capfd):
    value = {"text": "宋词\n\u2028", "number": 0.1, "nothing": None, "list": [1, [2]]}
    seen = []
    found = ask(worker, kind="echo", value=value, each=seen.append)
    assert found == seen
    assert found[1] == value
    assert "a library says something" in capfd.readouterr().err


def test_processes_of_a_run_share_their_best_calibration(worker, monkeypatch):
    monkeypatch.setattr(quiet, "_best", {-1: 0.5})
    assert ask(worker, kind="calibrates")[1] == {"-1": 0.5}
    assert quiet.best() == {-1: 0.5, -2: 0.25}


def test_allocation_and_threads(worker, monkeypatch):
    monkeypatch.setenv("MALLOC_TOP_PAD_", "1")
    found = in_worker(worker, {"kind": "echo", "value": 0}, threads=3)[2]
    assert {name: found.get(name) for name in FIXED_ALLOCATION} == FIXED_ALLOCATION
    assert found["OMP_NUM_THREADS"] == "3"


def test_errors_keep_their_class_and_message(worker):
    with pytest.raises(NumericsError, match="because of\nthat") as caught:
        ask(worker, kind="error", name="NumericsError", message="because of\nthat")
    assert type(caught.value) is NumericsError


def test_memory_that_ran_out(worker):
    with pytest.raises(ResourceError, match=r"out of memory.*you tried to allocate 9 bytes"):
        ask(worker, kind="memory")


def test_a_bug_leaves_its_traceback(worker, capfd):
    with pytest.raises(subprocess.CalledProcessError):
        ask(worker, kind="bug")
    assert "KeyError: 'gone'" in capfd.readouterr().err


def test_ended_by_the_system(worker):
    with pytest.raises(ResourceError, match=r"was ended by SIGKILL; the system does that when memory runs out"):
        ask(worker, kind="killed")


def test_a_result_that_cannot_be_kept_ends_the_work(worker, tmp_path):
    def each(result):
        pids.append(result["pid"])
        raise OSError("no space")

    pids = []
    with pytest.raises(OSError, match="no space"):
        ask(worker, kind="saves", path=str(tmp_path / "saved"), each=each)
    assert gone(pids[0], 0)  # its end was waited for


PARENT = """
import sys
from regard_lab.benchmark.worker import in_worker
in_worker("some_worker", {"kind": "saves", "path": sys.argv[1]}, threads=1,
      each=lambda result: print(result["pid"], flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_the_parents_end_is_the_childs_in_good_order(worker, tmp_path, number):
    """SIGINT as Ctrl-C sends it: to both at once."""
    path = tmp_path / "saved"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child = int(parent.stdout.readline())
    while not Path(f"{path}.ready").exists():
        time.sleep(0.01)
    if number == signal.SIGINT:
        os.kill(child, signal.SIGINT)
    parent.send_signal(number)
    parent.communicate(timeout=60)
    assert gone(child)
    assert path.exists()
    assert parent.returncode == {signal.SIGTERM: 143, signal.SIGKILL: -9, signal.SIGINT: -2}[number]
