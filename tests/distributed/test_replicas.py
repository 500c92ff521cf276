"""Several processes train one run: the same steps as one process, and errors that all of them name."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from regard_lab.distributed.replicas import merged_scores
from regard_lab.training import checkpoint, load, metrics, toml
from regard_lab.training.evaluation import Scores
from regard_lab.training.ranks import ALONE


def test_every_step_is_that_of_one_process(started, alone, tmp_path):
    """In float64, with accumulation and uneven shares of the validation; codebooks and clusters too."""
    codes, said = started("curves", 3, tmp_path / "several")
    assert codes == [0] * 3, said
    several = [json.loads((tmp_path / "several" / f"{rank}.json").read_text()) for rank in range(3)]
    for name, found in several[0].items():
        expected = alone[name]
        for curve in ("losses", "norms", "valid"):
            assert found[curve] == pytest.approx(expected[curve], rel=1e-9), (name, curve)
        for key, values in expected["tensors"].items():
            assert found["tensors"][key] == pytest.approx(values, rel=1e-7, abs=1e-9), (name, key)
        assert all(each[name]["tensors"] == found["tensors"] for each in several), name
        assert expected["losses"][-1] != pytest.approx(expected["losses"][0], rel=1e-3), "nothing was learned"


@pytest.mark.processes
def test_a_killed_process_is_named_and_the_run_goes_on_to_the_same_bits(started, config, tmp_path):
    codes, said = started("killed", 2, tmp_path / "killed", config)
    assert codes == [6, -9]
    assert "process 0 of 2: lost process 1, which left without a word" in said[0]
    assert checkpoint.step_of(checkpoint.paths(tmp_path / "killed" / "run" / "checkpoints")[-1]) == 6
    assert started("trained", 2, tmp_path / "killed", config)[0] == [0, 0]
    assert started("trained", 2, tmp_path / "whole", config)[0] == [0, 0]
    ends = [checkpoint.newest(tmp_path / name / "run" / "checkpoints")[0] for name in ("killed", "whole")]
    for part in ("model", "optimizer", "rng"):
        first, second = (getattr(end, part) for end in ends)
        assert first.keys() == second.keys()
        assert all(first[name].equal(second[name]) for name in first), part
    lines = [metrics.read(tmp_path / name / "run" / "metrics.jsonl") for name in ("killed", "whole")]
    timeless = [[{k: v for k, v in line.items() if k not in ("timing", "sha256")} for line in each] for each in lines]
    assert timeless[0] == timeless[1]


@pytest.mark.processes
def test_a_run_goes_on_with_other_processes(started, config, tmp_path):
    values = toml.load(Path(config))
    toml.save(replace(values, training=replace(values.training, batch_size=12)), Path(config))
    assert started("trained", 2, tmp_path / "run", config)[0] == [0, 0]
    codes, said = started("continued", 3, tmp_path / "run", config)
    assert codes == [0] * 3, said
    assert load(tmp_path / "run" / "run").step == 16


@pytest.mark.processes
def test_processes_draw_other_dropout(started, config, tmp_path):
    assert started("trained", 2, tmp_path / "run", config)[0] == [0, 0]
    saved, _ = checkpoint.newest(tmp_path / "run" / "run" / "checkpoints")
    assert saved is not None
    assert saved.rng.keys() == {"cpu", "cpu@1"}
    assert not saved.rng["cpu"].equal(saved.rng["cpu@1"])


@pytest.mark.processes
@pytest.mark.parametrize(
    ("scenario", "code", "wanted"),
    [
        ("failing", 3, "a page of the book is missing"),
        ("diverging", 5, "the loss is not finite"),
        ("unlike", 2, "learning_rate"),
    ],
)
def test_an_error_of_one_is_named_by_all(started, config, tmp_path, scenario, code, wanted):
    codes, said = started(scenario, 2, tmp_path / "run", config)
    assert codes == [code, code], said
    assert all(wanted in line for line in said), said


@pytest.mark.processes
def test_of_one_that_is_interrupted_before_it_begins_the_others_say_so(started, config, tmp_path):
    codes, said = started("interrupted", 2, tmp_path / "run", config)
    assert codes == [6, 1]
    assert said[0] == "ResourceError: process 1 of 2: was interrupted, which ends all; it says how to go on"


@pytest.mark.processes
def test_a_signal_to_one_stops_all_with_a_checkpoint(started, config, tmp_path):
    codes, said = started("stopped", 2, tmp_path / "run", config)
    assert codes == [143, 143], said
    saved = checkpoint.paths(tmp_path / "run" / "run" / "checkpoints")
    assert checkpoint.step_of(saved[-1]) == 7


@pytest.mark.processes
def test_nobody_leaves_before_the_checkpoint_is_written(started, config, tmp_path):
    """torchrun ends the process that still writes when another one has left."""
    codes, said = started("stopped_slowly", 2, tmp_path / "run", config)
    assert codes == [143, 143], said
    assert all(line.startswith("left behind") and line.endswith("step-00000007") for line in said), said


@pytest.mark.processes
def test_processes_that_see_other_checkpoints_are_refused(started, config, tmp_path):
    """One without the newest."""
    assert started("trained", 2, tmp_path, config)[0] == [0, 0]
    shutil.copytree(tmp_path / "run", tmp_path / "older")
    for path in (tmp_path / "older" / "checkpoints").iterdir():
        if path.name != "step-00000006":
            shutil.rmtree(path)
    codes, said = started("unlike_checkpoints", 2, tmp_path, config)
    assert codes == [2, 2], said
    assert all("have another list of checkpoints than process 0" in line for line in said), said


@pytest.mark.processes
@pytest.mark.parametrize(
    ("scenario", "wanted"),
    [("unlike_ways", "another way to share"), ("unlike_calls", "is elsewhere in its work")],
)
def test_processes_that_are_told_other_things_are_refused(started, config, tmp_path, scenario, wanted):
    """What they share, and whether a run begins."""
    assert started("trained", 2, tmp_path, config)[0] == [0, 0]
    codes, said = started(scenario, 2, tmp_path, config)
    assert codes == [2, 2], said
    assert all(wanted in line and "start all of them with the same command" in line for line in said), said


@pytest.mark.processes
def test_parts_that_do_not_divide_are_refused_with_those_that_do(started, config, tmp_path):
    codes, said = started("trained", 3, tmp_path / "run", config)
    assert codes == [2, 2, 2]
    assert all("gives 4 examples to 3 processes" in line and "batch_size=6 or 12" in line for line in said), said
    assert not (tmp_path / "run" / "run").exists()


LEAVING = """
import faulthandler, os, sys
import torch, torch.distributed as dist
from torch import nn
from regard.distributed import group
from regard_lab.distributed import replicas

faulthandler.dump_traceback_later(60, exit=True)
sys.setswitchinterval(10)  # so that threads of gloo wait for Python's lock
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}
for _ in range(40):
    with group.joined() as joined:
        model = replicas.Shared(nn.Linear(2, 2))
        model.replicate(unused=False)
        model(torch.ones(1, 2)).sum().backward()
        joined.gathered("a word")
    del model
"""


@pytest.mark.processes
def test_a_replica_that_outlives_its_group_waits_for_nobody(tmp_path):
    """Its last reference is freed with Python's lock in hand, which gloo's threads may want."""
    done = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.processes
def test_torchrun_starts_the_command(tmp_path):
    """As a user types it: the run is written once, and its lines are those of a run by one process."""
    options = "--model.dim 16 --model.layers 1 --model.heads 2 --task.length 32 --steps 4 --batch-size 4 --log-every 1"
    words = ["train", *options.split(), "--evaluate-examples", "5", "--seed", "3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "regard"]
    done = [
        subprocess.run(
            [*start, *words, "--out", str(tmp_path / name)],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment,
            check=True,
        )
        for name, start in (("one", [sys.executable, "-m", "regard"]), ("two", launcher))
    ]
    assert [each.stdout.count("Run: ") for each in done] == [1, 1]
    lines = [metrics.read(tmp_path / name / "metrics.jsonl") for name in ("one", "two")]
    assert len(lines[0]) == len(lines[1]) == 5
    for one, two in zip(*lines, strict=True):
        key = "loss" if one["kind"] == "train" else "nats_per_token"
        assert one["step"] == two["step"]
        assert two[key] == pytest.approx(one[key], rel=1e-5)


@pytest.mark.processes
def test_a_run_that_another_training_holds_is_refused(started, config, tmp_path):
    run = tmp_path / "run"
    assert started("trained", 0, tmp_path, config)[0] == [0]
    with ALONE.held(run):
        codes, said = started("continued", 2, tmp_path, config)
    assert codes == [6, 6], said
    assert all(f"{run} is being trained by another process; wait for it or stop it" in line for line in said), said


def test_scores_of_which_one_process_gave_up_are_none():
    assert merged_scores([Scores(), None]) is None
    assert merged_scores([Scores(), Scores()]) is not None
