"""Commands, called in this process; and one tiny trained run for those that need one."""

import io
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from regard.cli.main import main
from regard.files import consent

SOURCE = Path(__file__).parents[2] / "src"
TINY = ["--model.dim", "16", "--model.layers", "1", "--model.heads", "2", "--task.length", "32", "--batch-size", "4"]
TINY += ["--warmup", "1", "--threads", "1"]


@dataclass(frozen=True)
class Answer:
    """What a command left."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def nothing_imported(monkeypatch):
    """As in a new process: other tests import `tests.mutants` by its path, and all tests would be a user's code."""
    monkeypatch.setattr(consent, "_modules", {})


@pytest.fixture
def regard(capsys, monkeypatch, tmp_path) -> Callable[..., Answer]:
    """Run one command in an empty folder; whatever it is, it must not show a traceback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*words: object, stdin: bytes | None = None) -> Answer:
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        # A docstring that `info` shows may hold one too, but not at the margin.
        assert not re.search("^Traceback", captured.out + captured.err, re.MULTILINE), captured.err
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Options of a tiny training."""
    return TINY


@pytest.fixture(scope="session")
def text(tmp_path_factory) -> Path:
    """A small text file."""
    path = tmp_path_factory.mktemp("text") / "numbers.txt"
    path.write_text("".join(f"{number} is followed by {number + 1}.\n" for number in range(400)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory, text) -> Path:
    """A run with two checkpoints. Never to be changed: `run` is a copy."""
    path = tmp_path_factory.mktemp("trained") / "run"
    words = ["train", *TINY, "--task.corpus", str(text), "--steps", "4", "--checkpoint-every", "2", "--out", str(path)]
    assert main([*words, "--log-every", "2", "--task.cache", str(path.parent / "cache")]) == 0
    return path


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of the trained run."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="session")
def recall_run(tmp_path_factory) -> Path:
    """A run of a task without text."""
    path = tmp_path_factory.mktemp("recall") / "run"
    words = ["train", "--task", "recall", *TINY, "--steps", "1", "--task.num-pairs", "2", "--task.vocab-size", "16"]
    assert main([*words, "--task.num-held-out", "4", "--out", str(path)]) == 0
    return path


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """For commands in a process of their own."""
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
