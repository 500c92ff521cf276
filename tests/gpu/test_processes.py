"""Several processes that share a CUDA device: what they train and compute is what one does."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from regard_lab.training import toml
from tests.distributed import going_on
from tests.distributed.test_sequence import differences, found
from tests.gpu.test_runs import run_config

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


def test_every_step_is_that_of_one_process(tmp_path):
    """Losses, norms, and what the checkpoint holds, in float64."""
    one, two = tmp_path / "one", tmp_path / "two"
    codes = json.loads(started("shared_processes.py", "curves", 0, one, "then", "curves", 2, two))
    assert codes == [[0], [0, 0]], [(two / f"{rank}.txt").read_text()[-2000:] for rank in range(2)]
    expected = json.loads((one / "0.json").read_text())
    for rank in range(2):
        for name, each in json.loads((two / f"{rank}.json").read_text()).items():
            for key in ("losses", "norms", "valid"):
                assert each[key] == pytest.approx(expected[name][key], rel=1e-9), (name, key)
            for key, values in expected[name]["saved"].items():
                assert each["saved"][key] == pytest.approx(values, rel=1e-6, abs=1e-9), (name, key)


def test_what_processes_save_any_number_goes_on_with(tmp_path):
    """And the other way round, in float64."""
    config = run_config("softmax")
    toml.save(replace(config, training=replace(config.training, batch_size=8)), tmp_path / "c")
    jobs = {
        "whole": ("kept", 0, "8", ""),
        "two": ("kept", 2, "4", ""),
        "alone": ("kept", 0, "8", "two"),
        "begun": ("kept", 0, "4", ""),
        "from_one": ("kept", 2, "8", "begun"),
    }
    codes = json.loads(started("shared_processes.py", *going_on.words(jobs, tmp_path, str(tmp_path / "c"))))
    assert codes == going_on.codes(jobs)
    going_on.require_alike(jobs, tmp_path, 1e-6)
