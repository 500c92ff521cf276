"""Processes that share the weights: the steps of one process, a part of its memory, checkpoints for any number."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch

from regard.cli.main import main
from regard.files.checksums import Entry, manifest
from regard_lab.training import checkpoint, load, metrics, toml
from tests.distributed import going_on


def newest(run: Path) -> checkpoint.Checkpoint:
    found, _ = checkpoint.newest(run / "run" / "checkpoints")
    assert found is not None
    return found


@pytest.mark.processes
def test_every_step_is_that_of_one_process(started, alone, tmp_path):
    """In float64: tied, grouped and shared weights, codebooks, recomputed blocks, memories, accumulation; a weight that
    takes part in some steps and some processes."""
    codes, said = started("sharded_curves@shard=yes", 3, tmp_path / "several")
    assert codes == [0] * 3, said
    several = [json.loads((tmp_path / "several" / f"{rank}.json").read_text()) for rank in range(3)]
    assert len(several[0]) == 8
    assert 0 < several[0]["seldom"]["saved"]["seldom/step"][0] < 8
    for name, found in several[0].items():
        expected = alone[name]
        for curve in ("losses", "norms", "valid"):
            assert found[curve] == pytest.approx(expected[curve], rel=1e-9), (name, curve)
        assert found["tensors"].keys() == expected["tensors"].keys()
        for key, values in expected["tensors"].items():
            assert found["tensors"][key] == pytest.approx(values, rel=1e-9, abs=1e-9), (name, key)
        for key, values in expected["saved"].items():
            assert found["saved"][key] == pytest.approx(values, rel=1e-9, abs=1e-9), (name, key)


@pytest.mark.processes
def test_what_four_processes_saved_any_number_goes_on_with(started, config, tmp_path):
    """And what one saved, processes that share the weights: in float64 to the weights of a run that was not stopped."""
    values = toml.load(Path(config))
    toml.save(replace(values, training=replace(values.training, batch_size=24)), Path(config))
    sharded = "kept@shard=yes"
    jobs = {
        "whole": ("kept", 0, "8", ""),
        "begun": ("kept", 0, "4", ""),
        "four": (sharded, 4, "4", ""),
        "two": (sharded, 2, "8", "four"),
        "three": (sharded, 3, "8", "four"),
        "one": (sharded, 1, "8", "four"),
        "plain": ("kept", 0, "8", "four"),
        "replicas": ("kept", 2, "8", "four"),
        "from_one": (sharded, 2, "8", "begun"),
        "sequences": ("kept@shard=yes,sequence=2", 4, "8", "four"),
    }
    scenario, count, folder, *rest = going_on.words(jobs, tmp_path, config)
    codes, _ = started(scenario, int(count), Path(folder), *rest)
    assert codes == going_on.codes(jobs)
    going_on.require_alike(jobs, tmp_path)
    names = {path.name for path in newest(tmp_path / "four").path.iterdir()}
    assert {f"{part}.{number}-of-4.safetensors" for part in ("model", "optimizer") for number in range(1, 5)} < names
    whole = json.loads((tmp_path / "whole" / "0.json").read_text())
    for name, count in (("four", 4), ("two", 2), ("three", 3)):  # rows that do not divide are rounded up
        each = [json.loads((tmp_path / name / f"{rank}.json").read_text()) for rank in range(count)]
        for what, everything in whole.items():
            assert sum(one[what] for one in each) == everything
            assert max(one[what] for one in each) <= everything / count * (1.0 if count != 3 else 1.25), (name, what)


@pytest.mark.processes
def test_a_killed_process_is_named_and_the_run_goes_on_to_the_same_bits(started, config, tmp_path):
    sharded = "trained@shard=yes"
    jobs = ((sharded, "killed"), (sharded, "whole"))
    words = [word for scenario, name in jobs for word in ("then", scenario, "2", str(tmp_path / name), config)]
    assert started("killed@shard=yes", 2, tmp_path / "killed", config, *words)[0] == [[6, -9], [0, 0], [0, 0]]
    assert "lost process 1, which left without a word" in (tmp_path / "killed" / "0.txt").read_text()
    ends = [newest(tmp_path / name) for name in ("killed", "whole")]
    for part in ("model", "optimizer", "rng"):
        first, second = (getattr(end, part) for end in ends)
        assert first.keys() == second.keys()
        assert all(first[name].equal(second[name]) for name in first), part


def rewritten(path: Path, change: dict[str, object] | None = None, *, without: str = "") -> None:
    """A checkpoint with another progress.json or without a file, of which its manifest knows nothing."""
    if change:
        document = json.loads((path / "progress.json").read_text())
        (path / "progress.json").write_text(json.dumps({**document, **change}))
    if without:
        (path / without).unlink()
    files = {file.name: Entry.at(file) for file in path.iterdir() if file.name != "manifest.json"}
    (path / "manifest.json").write_text(json.dumps(manifest(files)))


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def moved(path: Path) -> None:
    """A shard that says that its parts of tensors are elsewhere."""
    data = path.read_bytes()
    path.write_bytes(data.replace(b'saved_offsets\\": [8', b'saved_offsets\\": [9'))
    assert path.read_bytes() != data


@pytest.mark.processes
def test_shards_that_are_damaged_missing_or_of_another_version_are_named_by_all(started, config, tmp_path):
    assert started("trained@shard=yes", 2, tmp_path / "base", config)[0] == [0, 0]
    path = newest(tmp_path / "base").path
    damage = {
        "flip": (lambda p: flipped(p / "model.2-of-2.safetensors"), "model.2-of-2.safetensors is damaged"),
        "gone": (lambda p: (p / "optimizer.1-of-2.safetensors").unlink(), "cannot read optimizer.1-of-2.safetensors"),
        "unnamed": (lambda p: rewritten(p, without="model.2-of-2.safetensors"), "shard 2 of 2 of the model is missing"),
        "moved": (lambda p: (moved(p / "model.2-of-2.safetensors"), rewritten(p)), "overlap or leave a gap"),
        "format": (lambda p: rewritten(p, {"format": 3}), "checkpoint format 3"),
        "stray": (
            lambda p: shutil.copy(p / "model.1-of-2.safetensors", p / "model.extra.safetensors"),
            "model.extra.safetensors",
        ),
    }
    words: list[str] = []
    for name, (break_it, _) in damage.items():
        shutil.copytree(tmp_path / "base", tmp_path / name)
        saved = tmp_path / name / "run" / "checkpoints"
        for other in checkpoint.paths(saved)[:-1]:
            shutil.rmtree(other)
        break_it(saved / path.name)
        words += ["then", "continued@shard=yes", "2", str(tmp_path / name), config]
    shutil.copytree(tmp_path / "base", tmp_path / "older")
    flipped(tmp_path / "older" / "run" / "checkpoints" / path.name / "model.1-of-2.safetensors")
    words += ["then", "continued@shard=yes", "2", str(tmp_path / "older"), config]
    scenario, count, folder, *rest = words[1:]
    codes, _ = started(scenario, int(count), Path(folder), *rest)
    assert codes == [[4, 4]] * len(damage) + [[0, 0]]
    for name, (_, wanted) in damage.items():
        for rank in range(2):
            assert wanted in (tmp_path / name / f"{rank}.txt").read_text(), name
        with nullcontext() if name == "stray" else pytest.raises(checkpoint.CheckpointError):  # nobody reads it alone
            checkpoint.newest(tmp_path / name / "run" / "checkpoints")
    assert load(tmp_path / "older" / "run").step == 16


@pytest.mark.processes
def test_a_disk_that_is_full_for_one_is_named_by_all_and_leaves_what_was_saved(started, config, tmp_path):
    codes, said = started("full_disk@shard=yes", 2, tmp_path, config)
    assert codes == [6, 6], said
    assert all("No space left on device" in line for line in said), said
    left = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["step-00000003"]
    assert newest(tmp_path).progress.step == 3


@pytest.mark.processes
def test_torchrun_trains_shards_that_every_other_command_reads(tmp_path, capsys):
    """As a user types it; what one process then goes on with is an ordinary run."""
    options = "--model.dim 16 --model.layers 1 --model.heads 2 --task.length 32 --steps 4 --batch-size 4 --log-every 1"
    words = ["train", *options.split(), "--evaluate-examples", "5", "--parallel.shard", "--out", str(tmp_path / "run")]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "regard"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, *words], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    run = str(tmp_path / "run")
    assert "parallel" not in (tmp_path / "run" / "config.toml").read_text()
    for command in (
        ["evaluate", run, "--limit", "2"],
        ["generate", run, "a", "--max-new-tokens", "3"],
        ["info", run],
        ["checkpoint", "verify", run],
        ["checkpoint", "export", run, "--out", str(tmp_path / "weights.safetensors")],
        ["train", "--resume", run, "--steps", "6"],
    ):
        assert main(command) == 0, (command, capsys.readouterr())
    exported = safetensors.torch.load_file(tmp_path / "weights.safetensors")
    saved = checkpoint.paths(tmp_path / "run" / "checkpoints")
    shared = checkpoint.load(saved[-2]).model
    assert exported.keys() == shared.keys()
    assert all(exported[name].equal(x) for name, x in shared.items())
    assert [(path / "model.safetensors").exists() for path in saved[-2:]] == [False, True]
    lines = metrics.read(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "train"] == [1, 2, 3, 4, 5, 6]


def test_one_process_by_itself_has_nothing_to_share(capsys):
    assert main(["train", "--parallel.shard"]) == 2
    assert "torchrun --nproc-per-node 2" in capsys.readouterr().err


@pytest.mark.processes
def test_a_folder_that_not_all_see_is_named(started, config, tmp_path):
    codes, said = started("elsewhere@shard=yes", 2, tmp_path, config)
    assert codes == [6, 6], said
    assert all("process 1 of 2, and process 0 has just made it: all must see the run's folder" in x for x in said), said
