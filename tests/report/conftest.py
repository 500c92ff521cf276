"""One tiny comparison, killed after its first job and run again; made once for all workers that want it."""

import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.cli.main import main
from regard.files.checksums import opened
from regard_lab.benchmark import accuracy, quality, sweep
from regard_lab.benchmark.config import CompareConfig, ShapeConfig
from regard_lab.benchmark.vectors import random_vectors
from regard_lab.tasks.config import ClassificationConfig, RecallConfig, TextConfig

SOURCE = Path(__file__).parents[2] / "src"
SPECS = ["softmax", "linear / softmax"]
SHAPE = ["--shape.dim", "32", "--shape.heads", "2", "--recall-shape.dim", "32", "--recall-shape.heads", "2"]
TASKS = ["--recall.length", "32", "--recall.num-pairs", "4", "--recall.num-held-out", "20", "--text.length", "32"]
STEPS = ["--text-steps", "12", "--recall-steps", "6", "--batch-size", "4", "--recall-batch-size", "4", "--rounds", "2"]
REST = [
    "--seeds",
    "1",
    "--evaluate-examples",
    "30",
    "--lengths",
    "64",
    "128",
    "192",
    "--threads",
    "1",
    "--text.holdout",
    "0.3",
]


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
        return opened((self.folder / "results.json").read_bytes())

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


@dataclass(frozen=True)
class Done:
    """A comparison made in this process. config, said: what it was asked for, and what it told."""

    config: CompareConfig
    folder: Path
    said: list[str]

    @cached_property
    def results(self) -> dict[str, Any]:
        return opened((self.folder / "results.json").read_bytes())

    @cached_property
    def page(self) -> str:
        return (self.folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def of_task(tmp_path_factory) -> Callable[[str], Done]:
    """A tiny comparison of a task, with two seeds, made on first use."""
    folder = tmp_path_factory.mktemp("tasks")

    @cache
    def made(task: str) -> Done:
        config, said = tiny(task, folder), list[str]()
        with inside():
            regard.compare(config=config, out=folder / task, tell=said.append)
        return Done(config, folder / task, said)

    return made


def tiny(task: str, folder: Path) -> CompareConfig:
    """Linformer cannot be causal, so that of all tasks only recall has to be asked for."""
    (folder / "words.txt").write_text("".join(f"{n} and {n + 1} make {2 * n + 1}.\n" for n in range(900)))
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, 160)
    images = (draw.integers(0, 120, (160, 8, 8)) + 60 * (labels[:, None, None] == np.arange(8) // 3)).astype(np.uint8)
    parts = {"train_images": images[:120], "test_images": images[120:]}
    np.savez(folder / "bars.npz", **parts, train_labels=labels[:120], test_labels=labels[120:])
    shape = ShapeConfig(dim=8, layers=2, heads=1)
    text = TextConfig(corpus=str(folder / "words.txt"), cache=str(folder / "cache"), length=32, holdout=0.2)
    own: dict[str, Any] = {
        "mlm": {"text": text, "masked_steps": 6, "masked_batch_size": 4, "shape": shape, "evaluate_examples": 24},
        "recall": {
            "task": "recall",
            "recall": RecallConfig(vocab_size=16, length=16, num_pairs=2, num_held_out=20),
            "recall_steps": 6,
            "recall_shape": shape,
            "evaluate_examples": 24,
        },
        "classify": {
            "task": "classify",
            "classification": ClassificationConfig(data=str(folder / "bars.npz"), patch=2, holdout=0.2),
            "classification_steps": 40,
            "classification_learning_rate": 1e-2,
            "shape": shape,
            "baselines": ("linear", "lstm"),
        },
    }[task]
    specs = ("softmax", "uniform" if task == "recall" else "linformer(rank=4) / uniform")
    return CompareConfig(specs=specs, seeds=2, lengths=(32, 64), rounds=1, threads=1, **own)


@contextmanager
def inside() -> Iterator[None]:
    """What a comparison runs in processes of its own runs in this one, and is still sent as JSON."""

    def answer(work: Callable[[Any], Any]) -> Callable[..., list[Any]]:
        def in_worker(module, payload, *, threads, each=lambda result: None):
            results = []
            for result in work(json.loads(json.dumps(payload))):
                results.append(json.loads(json.dumps(result)))
                each(results[-1])
            return results

        return in_worker

    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quality, "in_worker", answer(quality._serve))
        patch.setattr(sweep, "in_worker", answer(sweep._serve))
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@pytest.fixture
def in_this_process() -> Iterator[None]:
    with inside():
        yield


@pytest.fixture(scope="session")
def microscope() -> dict[str, Any]:
    """Results of `regard accuracy`: one that cannot be causal, one without a matrix, and exact softmax too."""
    cases = [
        random_vectors(norm, length=12, causal=causal, heads=2, key_dim=8)
        for causal in (True, False)
        for norm in (1.0, 2.0)
    ]
    specs = ("performer", "linformer(rank=4)", "linear", "linear(post='softmax')", "softmax")
    config = accuracy.AccuracyConfig(specs=specs, knobs={"num_features": (4, 64)}, redraws=4)
    return json.loads(json.dumps(accuracy.measure(config, cases)))
