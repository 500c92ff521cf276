"""A checkpoint is bound to the run that wrote it: one of another run with the same shapes is refused by name."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from regard.checksums import opened, sealed
from regard.cli.main import main
from regard.errors import CheckpointError
from regard.training import begun, checkpoint, load, resume, train
from regard.training.identity import Identity


@pytest.fixture
def two(small, tmp_path):
    """Two runs of the same shape and data, one with another learning rate."""
    first = train(small, tmp_path / "first").path
    other = train(replace(small, training=replace(small.training, learning_rate=0.5)), tmp_path / "other").path
    return first, other


def newest(run: Path) -> Path:
    return checkpoint.paths(run / "checkpoints")[-1]


def exchanged(run: Path, other: Path) -> Path:
    """The newest checkpoint of a run becomes that of another one."""
    path = newest(run)
    shutil.rmtree(path)
    shutil.copytree(newest(other), path)
    return path


def test_every_checkpoint_carries_the_id_of_its_run(two):
    first, other = two
    mine = begun.identity(first)
    assert len(mine.id) == 32
    assert mine.others == ()
    assert mine.id != begun.identity(other).id
    assert {checkpoint.load(path).progress.run for path in checkpoint.paths(first / "checkpoints")} == {mine.id}
    resume(first, steps=checkpoint.load(newest(first)).progress.step + 1)
    assert begun.identity(first) == mine


def test_a_checkpoint_of_another_run_is_refused(two, capsys):
    first, other = two
    path = exchanged(first, other)
    before = (first / "manifest.json").read_bytes()
    said = f"{path} is of another run ({begun.identity(other).id}) than {first} ({begun.identity(first).id}); take it"
    for act in (load, resume, lambda run: resume(run, steps=99)):
        with pytest.raises(CheckpointError) as caught:
            act(first)
        assert said in str(caught.value)
        assert "--edited" in str(caught.value)
    capsys.readouterr()
    assert main(["checkpoint", "export", str(first), "--out", str(first.parent / "x.safetensors")]) == 4
    assert said in capsys.readouterr().err
    assert main(["checkpoint", "verify", str(first)]) == 4
    assert "another run" in " ".join(capsys.readouterr().out.split())
    assert (first / "manifest.json").read_bytes() == before


def test_a_checkpoint_of_another_run_can_be_agreed_to(two):
    first, other = two
    exchanged(first, other)
    shutil.copy(other / "metrics.jsonl", first)
    mine, theirs = begun.identity(first).id, begun.identity(other).id
    step = checkpoint.load(newest(first)).progress.step
    resume(first, steps=step + 1, edited=True)
    assert begun.identity(first) == Identity(mine, (theirs,))
    assert checkpoint.load(newest(first)).progress.run == mine
    resume(first, steps=step + 2)
    assert load(first).step == step + 2


def test_a_run_that_lost_its_manifest_is_refused(two):
    first, _ = two
    (first / "manifest.json").unlink()
    for act in (load, resume):
        with pytest.raises(CheckpointError, match=r"cannot read .*manifest\.json: No such file .*; restore it"):
            act(first)


@pytest.mark.parametrize("wrong", [3, {"id": "a"}])
def test_an_id_that_is_none_is_damage(small, tmp_path, wrong):
    run = train(small, tmp_path / "run").path
    written = opened((run / "manifest.json").read_bytes())
    (run / "manifest.json").write_text(json.dumps(sealed({**written, "run": wrong})))
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        load(run)
