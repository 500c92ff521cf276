import errno
import json
import logging
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.core.errors import CheckpointError, ResourceError
from regard.files import folders as files
from regard.models import LanguageModel, ModelConfig
from regard_lab.training import checkpoint, random_states
from regard_lab.training.checkpoint import Progress
from regard_lab.training.optimizer import adamw, set_rate

CPU = torch.device("cpu")
FILES = ("model.safetensors", "optimizer.safetensors", "rng.safetensors", "progress.json", "manifest.json")


def trained(seed: int = 0) -> tuple[LanguageModel, torch.optim.AdamW]:
    """A model with tied weights and a shared position scheme, after two steps on random gradients."""
    model = LanguageModel(ModelConfig(dim=16, heads=2, vocab_size=9, position="transformer_xl", seed=seed))
    model.register_buffer("count", torch.tensor(3 + seed))
    optimizer = adamw(model)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        set_rate(optimizer, 0.01)
        optimizer.step()
    return model, optimizer


def save(folder: Path, step: int, *, seed: int = 0, score: float | None = None) -> Path:
    return checkpoint.save(folder, Progress(step=step, score=score), *trained(seed), CPU)


def test_everything_comes_back(tmp_path):
    model, optimizer = trained()
    progress = Progress(5, 600, 77, {"nats": 0.1 + 0.2, "losses.a.1": 1e-300}, 4, 1 / 3, "data")
    torch.manual_seed(8)
    path = checkpoint.save(tmp_path, progress, model, optimizer, CPU)
    expected = torch.randn(5)
    assert path == tmp_path / "step-00000005"
    found = checkpoint.load(path)
    assert found.progress == progress

    other, fresh = trained(seed=1)
    fresh = adamw(other)
    checkpoint.restore(other, fresh, found)
    random_states.use_rng_states(found.rng, CPU)
    assert torch.equal(torch.randn(5), expected)
    assert other.count == 3
    for (name, ours), theirs in zip(other.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
        assert fresh.state[ours].keys() == optimizer.state[theirs].keys() == {"step", "exp_avg", "exp_avg_sq"}
        for kind, value in optimizer.state[theirs].items():
            assert torch.equal(fresh.state[ours][kind], value)
            assert fresh.state[ours][kind].dtype == value.dtype


def test_a_shared_tensor_is_saved_once_and_stays_shared(tmp_path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)
            self.second.weight = self.first.weight

    model = Tied()
    path = checkpoint.save(tmp_path, Progress(1), model, adamw(model), CPU)
    found = checkpoint.load(path)
    assert set(found.model) == {"first.weight", "first.bias", "second.bias"}
    other = Tied()
    checkpoint.restore_model(other, found)
    assert other.second.weight is other.first.weight
    assert torch.equal(other.second.weight, model.first.weight)


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "remove"])
@pytest.mark.parametrize("file", FILES)
def test_damage_is_seen_reported_and_skipped(tmp_path, file, damage, caplog):
    older, newer = save(tmp_path, 1), save(tmp_path, 2)
    victim = newer / file
    data = bytearray(victim.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    elif damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "grow":
        data += b"x"
    victim.write_bytes(data)
    if damage == "remove":
        victim.unlink()
    with pytest.raises(CheckpointError, match=str(newer)):
        checkpoint.load(newer)
    with caplog.at_level(logging.WARNING, "regard"):
        found, damaged = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.path == older
    assert damaged == [newer]
    assert str(newer) in caplog.text


def test_none_that_verifies_is_an_error_and_none_at_all_is_not(tmp_path):
    assert checkpoint.newest(tmp_path / "nowhere") == (None, [])
    for step in (1, 2):
        (save(tmp_path, step) / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError) as caught:
        checkpoint.newest(tmp_path)
    assert "step-00000001" in str(caught.value)
    assert "step-00000002" in str(caught.value)


def test_two_writers_of_one_folder(tmp_path, monkeypatch):
    """The first to finish has it, and the other one is refused and takes nothing away from it."""
    write = files._write

    def meanwhile(path, data):
        monkeypatch.setattr(files, "_write", write)
        files.save_folder(tmp_path / "it", {"a": b"theirs", "b": b"more"})
        write(path, data)

    monkeypatch.setattr(files, "_write", meanwhile)
    with pytest.raises(ResourceError, match=r"it: Directory not empty. Choose a folder"):
        files.save_folder(tmp_path / "it", {"a": b"ours"})
    assert files.load_folder(tmp_path / "it") == {"a": b"theirs", "b": b"more"}
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def test_half_written_folders_do_not_count(tmp_path):
    whole = save(tmp_path, 1)
    (tmp_path / ".step-00000002.partial").mkdir()
    (tmp_path / "step-00000003").mkdir()
    found, damaged = checkpoint.newest(tmp_path)
    assert found is not None
    assert (found.path, damaged) == (whole, [tmp_path / "step-00000003"])


def _rewritten(path: Path, name: str, data: bytes) -> None:
    """Change a file and its entry in the manifest."""
    contents = {**files.load_folder(path), name: data}
    files.remove_folder(path)
    files.save_folder(path, contents)


def test_another_format_or_other_fields_are_refused(tmp_path):
    for change in ({"format": 3}, {"novelty": 1}):
        path = save(tmp_path / str(change), 1)
        document = {**json.loads((path / "progress.json").read_text()), **change}
        _rewritten(path, "progress.json", json.dumps(document).encode())
        with pytest.raises(CheckpointError, match=r"format 3|novelty"):
            checkpoint.load(path)


def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(tmp_path):
    found = checkpoint.load(save(tmp_path, 1))
    for change in ({"dim": 32}, {"layers": 1}, {"layers": 3}):
        other = LanguageModel(
            ModelConfig(**{"dim": 16, "heads": 2, "vocab_size": 9, "position": "transformer_xl", **change})
        )
        other.register_buffer("count", torch.tensor(1))
        before = [parameter.detach().clone() for parameter in other.parameters()]
        with pytest.raises(CheckpointError, match="another model"):
            checkpoint.restore_model(other, found)
        assert all(torch.equal(a, b) for a, b in zip(before, other.parameters(), strict=True))


@pytest.mark.parametrize("failing", range(7))
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_failed_save_names_the_path_keeps_the_previous_and_leaves_nothing(tmp_path, monkeypatch, code, failing):
    """Each of the seven forced writes fails in turn: five files, their folder, the parent."""
    previous = save(tmp_path, 1)
    model, optimizer = trained()
    fsync = os.fsync
    calls = iter(range(20))

    def full(file: int) -> None:
        if next(calls) == failing:
            raise OSError(code, os.strerror(code))
        fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    advice = "Free some space or choose a folder" if code == errno.ENOSPC else "Choose a folder that can be written"
    with pytest.raises(ResourceError, match=rf"step-00000002: {os.strerror(code)}\. {advice}"):
        checkpoint.save(tmp_path, Progress(2), model, optimizer, CPU)
    monkeypatch.undo()
    found, damaged = checkpoint.newest(tmp_path)
    assert found is not None
    assert damaged == []
    # After the rename the checkpoint is whole, though its name may not survive a power cut.
    there = [previous, tmp_path / "step-00000002"] if failing == 6 else [previous]
    assert sorted(tmp_path.iterdir()) == there
    assert found.path == there[-1]


def test_a_save_forces_seven_writes(tmp_path, monkeypatch):
    """So that the test above leaves none out."""
    calls = []
    monkeypatch.setattr(os, "fsync", calls.append)
    save(tmp_path, 1)
    assert len(calls) == 7


def test_a_step_saved_again_replaces_nothing_before_it_is_whole(tmp_path):
    first, second = save(tmp_path, 3), save(tmp_path, 3, seed=1)
    assert (first.name, second.name) == ("step-00000003", "step-00000003.1")
    assert checkpoint.paths(tmp_path) == [first, second]
    found, _ = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.path == second
    checkpoint.retain(tmp_path, keep=3)
    assert checkpoint.paths(tmp_path) == [second]
    assert save(tmp_path, 3).name == "step-00000003"


def test_the_newest_and_the_best_are_kept(tmp_path):
    for step, score in enumerate([3.0, 1.0, None, 2.0, 1.0, 4.0, None], 1):
        save(tmp_path, step, score=score)
    best = checkpoint.best(tmp_path)
    assert best is not None
    assert best.name == "step-00000005"
    damaged = tmp_path / "step-00000006"
    checkpoint.retain(tmp_path, keep=2, damaged=[damaged])
    assert [path.name[-1] for path in checkpoint.paths(tmp_path)] == ["5", "7"]
    checkpoint.retain(tmp_path, keep=1)
    assert [path.name[-1] for path in checkpoint.paths(tmp_path)] == ["5", "7"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in checkpoint.paths(tmp_path)]


def test_export_writes_the_model_of_a_checkpoint(tmp_path):
    import safetensors.torch

    path = save(tmp_path, 1)
    saved = checkpoint.load(path)
    checkpoint.retain(tmp_path, keep=0)  # as by who trains the run
    checkpoint.export(saved, tmp_path / "new" / "model.safetensors")
    exported = safetensors.torch.load_file(tmp_path / "new" / "model.safetensors")
    assert exported.keys() == saved.model.keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in saved.model.items())
