"""Several processes that share a CUDA device: what they train and compute is what one does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.test_sequence import differences, found

ROOT = Path(__file__).parents[2]


def started(program: str, *words: object) -> str:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(Path(__file__).with_name(program)), *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    started("shared_sequence.py", folder)
    return folder


def test_parts_of_a_sequence_give_what_the_whole_gives(shared):
    ways = set()
    for each in found(shared, "three", "mechanisms"):
        for name, case in each.items():
            ways.add(case["way"])
            assert case["way"] == "refused" or max(differences(case).values()) < 1e-12, (name, case)
    assert ways == {"ring", "window", "sums", "passed", "around", "refused"}


def test_every_step_of_parts_is_that_of_one_process(shared):
    (wanted,) = found(shared, "one", "alone")
    for each in found(shared, "three", "together"):
        for name, one in wanted.items():
            for key in ("losses", "norms", "valid"):
                assert each[name][key] == pytest.approx(one[key], rel=1e-9), (name, key)
            for key, values in one["tensors"].items():
                assert each[name]["tensors"][key] == pytest.approx(values, rel=1e-6, abs=1e-9), (name, key)
