"""A checkpoint is bound to the run that wrote it: one of another run with the same shapes is refused by name."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from regard.cli.main import main
from regard.core.errors import CheckpointError
from regard_lab.training import begun, checkpoint, load, resume


@pytest.fixture
def two(small, tmp_path, finished):
    """Two runs of the same shape and data, one with another learning rate."""
    first = finished(small, "first")
    other = finished(replace(small, training=replace(small.training, learning_rate=0.5)), "other")
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
    mine = begun.id_of(first)
    assert len(mine) == 32
    assert mine != begun.id_of(other)
    assert {checkpoint.load(path).progress.run for path in checkpoint.paths(first / "checkpoints")} == {mine}
    resume(first, steps=checkpoint.load(newest(first)).progress.step + 1)
    assert begun.id_of(first) == mine


def test_a_checkpoint_of_another_run_is_refused(two, capsys):
    first, other = two
    path = exchanged(first, other)
    before = (first / "manifest.json").read_bytes()
    said = f"{path} is of another run ({begun.id_of(other)}) than {first} ({begun.id_of(first)}); take it"
    for act in (load, resume, lambda run: resume(run, edited=True)):
        with pytest.raises(CheckpointError) as caught:
            act(first)
        assert said in str(caught.value)
        assert "regard train --from RUN" in str(caught.value)
    capsys.readouterr()
    assert main(["checkpoint", "export", str(first), "--out", str(first.parent / "x.safetensors")]) == 4
    assert said in capsys.readouterr().err
    assert main(["checkpoint", "verify", str(first)]) == 4
    assert "another run" in " ".join(capsys.readouterr().out.split())
    assert (first / "manifest.json").read_bytes() == before


def test_a_run_that_lost_its_manifest_is_refused(two):
    first, _ = two
    (first / "manifest.json").unlink()
    for act in (load, resume):
        with pytest.raises(CheckpointError, match=r"cannot read .*manifest\.json: No such file .*; restore it"):
            act(first)
