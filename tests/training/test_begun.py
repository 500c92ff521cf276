"""Runs are begun by one process each; one that is refused changes nothing."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from regard.cli.main import main
from regard.core.errors import CheckpointError, ConfigError, ResourceError, UnsafeFileError
from regard_lab.training import TrainingConfig, load, new_run, resume, train
from regard_lab.training.interruption import locked


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_who_comes_when_the_folder_has_become_the_run_is_refused(small, tmp_path, monkeypatch):
    """The first one finishes between what the second one looks at and what it writes."""
    build, seen = new_run.build_task, []

    def finishing(*args, **kwargs):
        if not seen:
            seen.append(True)
            other = tmp_path / "other"
            train(small, other)
            other.rename(tmp_path / "run")
            seen.append(everything(tmp_path / "run"))
        return build(*args, **kwargs)

    monkeypatch.setattr(new_run, "build_task", finishing)
    with pytest.raises(ResourceError, match=r"cannot write .*run: Directory not empty"):
        train(small, tmp_path / "run")
    assert everything(tmp_path / "run") == seen[1]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_a_killed_process_left_is_begun_anew(small, tmp_path):
    left = tmp_path / f".run.{16 * '0'}.partial"
    left.mkdir()
    for name in ("config.toml", "tokenizer.json"):
        (left / name).write_text("half")
    train(small, tmp_path / "run")
    assert not (tmp_path / "run/tokenizer.json").exists()
    assert not left.exists()


def test_a_run_that_is_held_is_not_written(small, tmp_path, finished):
    """Nor its env.json, though the environment is another one."""
    finished(small)
    path = tmp_path / "run/env.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "threads": 7}))
    before = everything(tmp_path)
    with locked(tmp_path / "run"), pytest.raises(ResourceError, match="another process"):
        resume(tmp_path / "run")
    assert everything(tmp_path) == before


def test_commands_in_messages_can_be_pasted(small, tmp_path, finished):
    where = finished(small, "ru n's/ünï")
    command = f"--resume {shlex.quote(str(where))}"
    other = replace(small, training=replace(small.training, steps=13))
    for again, config in ((False, small), (True, other)):
        with pytest.raises(ConfigError) as caught:
            train(config, where, resume=again)
        assert command in str(caught.value)
    for path in (where / "checkpoints").iterdir():
        path.rename(where / path.name)
    with pytest.raises(CheckpointError) as missing:
        load(where)
    assert command in str(missing.value)


def test_an_unknown_device(small, tmp_path, finished):
    finished(small)
    with pytest.raises(ConfigError, match="unknown device 'gpu': did you mean 'cpu'"):
        load(tmp_path / "run", device="gpu")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seed": 99999999999999999999999}, "seed must be an integer of 64 bits, got 99999999999999999999999"),
        ({"threads": 99999}, "threads must be at most 1024, got 99999"),
    ],
)
def test_numbers_that_the_machine_does_not_take(wrong, message):
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**wrong)


def test_checkpoints_may_lie_on_another_disk(small, tmp_path, finished):
    run, disk = finished(small), tmp_path / "disk"
    (run / "checkpoints").rename(disk)
    (run / "checkpoints").symlink_to(disk)
    assert resume(run, steps=14).evaluation["step"] == 14
    assert (disk / "step-00000014").is_dir()
    weights = tmp_path / "weights.safetensors"
    for words in (["list", str(run)], ["verify", str(run)], ["export", str(run), "--out", str(weights)]):
        assert main(["checkpoint", *words]) == 0
    assert weights.read_bytes() == (disk / "step-00000014" / "model.safetensors").read_bytes()
    before = everything(run)
    disk.rename(tmp_path / "unmounted")
    for act in (load, resume):
        with pytest.raises(ResourceError, match=r"checkpoints is a link to .*disk, which is no folder; mount its disk"):
            act(run)
    assert everything(run) == before


def test_metrics_that_are_a_link_are_not_cut_off(small, tmp_path, finished):
    run, mine = finished(small), tmp_path / "mine"
    (run / "metrics.jsonl").rename(mine)
    (run / "metrics.jsonl").symlink_to(mine)
    before = mine.read_bytes()
    with pytest.raises(UnsafeFileError, match=r"metrics\.jsonl is a link"):
        resume(run, steps=14)
    assert mine.read_bytes() == before
