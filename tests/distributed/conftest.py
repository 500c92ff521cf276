"""Runs of several processes, and what one process gives."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.models.config import ModelConfig
from regard_lab.tasks import RecallConfig
from regard_lab.training import RunConfig, TrainingConfig, toml

PROGRAM = Path(__file__).with_name("processes.py")

Started = Callable[..., tuple[list[int], list[str]]]


@pytest.fixture(scope="session")
def started() -> Started:
    """Gives exit codes, and the last line that each process wrote."""

    def start(scenario: str, count: int, folder: Path, *rest: str) -> tuple[list[int], list[str]]:
        folder.mkdir(exist_ok=True)
        words = [sys.executable, str(PROGRAM), scenario, str(count), str(folder), *rest]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), said(folder, max(count, 1))

    return start


def said(folder: Path, count: int) -> list[str]:
    """The last line that each process wrote."""
    written = [(folder / f"{rank}.txt").read_text(errors="replace").splitlines() for rank in range(count)]
    return [lines[-1] if lines else "" for lines in written]


@pytest.fixture(scope="session")
def alone(tmp_path_factory, started) -> dict:
    """The curves of one process."""
    folder = tmp_path_factory.mktemp("alone")
    codes, lines = started("curves", 0, folder)
    assert codes == [0], lines
    return json.loads((folder / "0.json").read_text())


@pytest.fixture
def config(tmp_path) -> str:
    """A run with dropout, so that random states matter."""
    values = RunConfig(
        model=ModelConfig(dim=16, heads=2, layers=1, dropout=0.1, vocab_size=16, max_length=16),
        task=RecallConfig(vocab_size=16, length=16, num_pairs=2, num_examples=21, num_held_out=5),
        training=TrainingConfig(
            steps=8,
            batch_size=8,
            accumulation=2,
            warmup=2,
            log_every=3,
            evaluate_every=4,
            checkpoint_every=3,
            threads=1,
        ),
    )
    toml.save(values, tmp_path / "config.toml")
    return str(tmp_path / "config.toml")
