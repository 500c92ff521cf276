"""One tiny comparison, killed after its first job and run again; made once for all workers that want it."""

import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from regard.cli.main import main

SOURCE = Path(__file__).parents[2] / "src"
SPECS = ["softmax", "linear / softmax"]
SHAPE = ["--shape.dim", "32", "--shape.heads", "2", "--recall-shape.dim", "32", "--recall-shape.heads", "2"]
TASKS = ["--recall.length", "32", "--recall.num-pairs", "4", "--recall.num-held-out", "20", "--text.length", "32"]
STEPS = ["--text-steps", "12", "--recall-steps", "6", "--batch-size", "4", "--recall-batch-size", "4", "--rounds", "2"]
REST = ["--evaluate-examples", "30", "--lengths", "64", "128", "192", "--threads", "1", "--text.holdout", "0.3"]


@dataclass(frozen=True)
class Compared:
    """folder: of the comparison. killed: what the first, killed process said. times: of the files of the jobs that were
    finished then. code, out, err: of the second call.
    """

    folder: Path
    words: list[str]
    killed: str
    times: dict[str, int]
    child_ended: bool
    code: int
    out: str
    err: str

    @cached_property
    def results(self) -> dict[str, Any]:
        return json.loads((self.folder / "results.json").read_text(encoding="utf-8"))

    @cached_property
    def page(self) -> str:
        return (self.folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def compared(tmp_path_factory) -> Compared:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "comparison.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers wait until it is made
        record = shared / "comparison" / "record.json"
        if not record.exists():
            record.parent.mkdir()
            record.write_text(json.dumps(_made(record.parent)))
        found = json.loads(record.read_text())
    return Compared(folder=shared / "comparison" / "out", **found)


def _made(folder: Path) -> dict[str, Any]:
    lines = (json.dumps({"text": f"Number {n} comes before number {n + 1}. " * 20}) for n in range(40))
    (folder / "numbers.jsonl").write_text("\n".join(lines))
    words = ["compare", *SPECS, *SHAPE, *TASKS, *STEPS, *REST]
    words += ["--text.corpus", str(folder / "numbers.jsonl"), "--text.cache", str(folder / "cache")]
    words += ["--out", str(folder / "out")]
    killed, ended = _killed_after_the_first_job(words, folder / "out" / "jobs")
    times = {path.name: path.stat().st_mtime_ns for path in (folder / "out" / "jobs").glob("*.json")}
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    said = {"killed": killed, "code": code, "out": out.getvalue(), "err": err.getvalue()}
    return {"words": words, "times": times, "child_ended": ended, **said}


def _killed_after_the_first_job(words: list[str], jobs: Path) -> tuple[str, bool]:
    """What it said, and whether the process that trains ended with it."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "regard.cli.main", *words], env=environment, stderr=subprocess.PIPE, text=True
    )
    while not list(jobs.glob("softmax-*-text-0.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split() or [None]
    process.send_signal(signal.SIGKILL)
    said = process.communicate()[1]
    until = time.monotonic() + 30
    while child and Path(f"/proc/{child}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    return said, not (child and Path(f"/proc/{child}").exists())


@pytest.fixture
def changed(compared) -> Callable[..., dict[str, Any]]:
    """The results with something else in them: a function changes a copy."""

    def change(edit: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        copy = json.loads(json.dumps(compared.results))
        edit(copy)
        return copy

    return change
