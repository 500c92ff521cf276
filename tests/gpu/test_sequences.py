"""Parts of sequences on a CUDA device: three processes that share it find what one call and one process find."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.test_sequence import differences, found

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, str(Path(__file__).with_name("shared_sequence.py")), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return folder


def test_every_mechanism_that_can_gives_what_the_whole_gives(shared):
    ways = set()
    for each in found(shared, "three", "mechanisms"):
        for name, case in each.items():
            ways.add(case["way"])
            assert case["way"] == "refused" or max(differences(case).values()) < 1e-12, (name, case)
    assert ways == {"ring", "window", "sums", "passed", "around", "refused"}


def test_every_step_is_that_of_one_process(shared):
    (wanted,) = found(shared, "one", "alone")
    for each in found(shared, "three", "together"):
        for name, one in wanted.items():
            for key in ("losses", "norms", "valid"):
                assert each[name][key] == pytest.approx(one[key], rel=1e-9), (name, key)
            for key, values in one["tensors"].items():
                assert each[name]["tensors"][key] == pytest.approx(values, rel=1e-6, abs=1e-9), (name, key)
