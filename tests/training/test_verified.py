"""What a checkpoint holds is compared with what it must hold, before any of it is used."""

import errno
import json
import os
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch

from regard.core.errors import CheckpointError, ConfigError, ResourceError, UnsafeFileError
from regard.files import folders as files
from regard.models import LanguageModel, ModelConfig
from regard_lab.training import checkpoint, load, metrics, random_states, resume
from regard_lab.training.checkpoint import Progress
from regard_lab.training.optimizer import adamw, set_rate

CPU = torch.device("cpu")
MATRIX = "blocks.0.attention.projections.query.weight"


def trained() -> tuple[LanguageModel, torch.optim.AdamW]:
    model = LanguageModel(ModelConfig(dim=16, heads=2, layers=1, vocab_size=9))
    optimizer = adamw(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    set_rate(optimizer, 0.01)
    optimizer.step()
    return model, optimizer


def rewritten(path: Path, change, part: str) -> None:
    """Change what a part of a checkpoint says, and its entry in the manifest."""
    contents = files.load_folder(path)
    if part == "progress":
        contents["progress.json"] = json.dumps(change(json.loads(contents["progress.json"]))).encode()
    else:
        contents[f"{part}.safetensors"] = safetensors.torch.save(
            change(safetensors.torch.load(contents[f"{part}.safetensors"]))
        )
    files.remove_folder(path)
    files.save_folder(path, contents)


def without(*keys):
    return lambda tensors: {name: x for name, x in tensors.items() if name not in keys}


def with_(**changes):
    return lambda tensors: {**tensors, **{name.replace("__", "/"): x for name, x in changes.items()}}


def of_matrix(kind, change):
    return lambda tensors: {**tensors, f"{MATRIX}/{kind}": change(tensors[f"{MATRIX}/{kind}"]).contiguous()}


OPTIMIZERS = {
    "fewer rows": (of_matrix("exp_avg", lambda x: x[:1]), r"query\.weight/exp_avg is \(1, 16\)"),
    "another dtype": (of_matrix("exp_avg", torch.Tensor.double), "exp_avg is .* torch.float64"),
    "steps of every number": (of_matrix("step", lambda x: x.repeat(3)), r"step is \(3,\)"),
    "no mean": (without(f"{MATRIX}/exp_avg"), "exp_avg is missing"),
    "another kind": (with_(**{f"{MATRIX}/novelty": torch.zeros(1)}), "novelty is not in the model"),
    "another weight": (with_(foo__step=torch.zeros(())), "foo/step is not in the model"),
    "a weight less": (
        lambda tensors: {name: x for name, x in tensors.items() if not name.startswith(f"{MATRIX}/")},
        rf"is of another model: {re.escape(MATRIX)}/exp_avg is missing; {re.escape(MATRIX)}/exp_avg_sq is missing",
    ),
}


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_an_optimizer_that_is_none_of_this_model_is_refused_and_nothing_is_restored(tmp_path, case):
    change, message = OPTIMIZERS[case]
    path = checkpoint.save(tmp_path, Progress(1), *trained(), CPU)
    rewritten(path, change, "optimizer")
    model = LanguageModel(ModelConfig(dim=16, heads=2, layers=1, vocab_size=9, seed=7))
    optimizer = adamw(model)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(CheckpointError, match=message):
        checkpoint.restore(model, optimizer, checkpoint.load(path))
    assert not optimizer.state
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_weight_that_never_had_a_gradient_has_no_state(tmp_path):
    model, optimizer = trained()
    del optimizer.state[model.get_parameter(MATRIX)]
    found = checkpoint.load(checkpoint.save(tmp_path, Progress(1), model, optimizer, CPU))
    fresh = adamw(model)
    checkpoint.restore(model, fresh, found)
    assert len(fresh.state) == len(list(model.parameters())) - 1


def test_moments_of_a_weight_that_is_not_trained_now_are_refused(tmp_path):
    model, optimizer = trained()
    found = checkpoint.load(checkpoint.save(tmp_path, Progress(1), model, optimizer, CPU))
    model.get_parameter(MATRIX).requires_grad_(False)
    with pytest.raises(CheckpointError, match=rf"{re.escape(MATRIX)}/exp_avg is not in the model"):
        checkpoint.restore(model, adamw(model), found)


def test_nothing_is_trained_before_the_first_step(tmp_path):
    model = trained()[0]
    found = checkpoint.load(checkpoint.save(tmp_path, Progress(0), model, adamw(model), CPU))
    checkpoint.restore(model, adamw(model), found)


def test_random_states_of_another_size_are_refused(tmp_path):
    before = torch.get_rng_state()
    for states in ({}, {"cpu": torch.zeros(3, dtype=torch.uint8)}, {"cpu": torch.zeros(3)}):
        with pytest.raises(CheckpointError, match="random state"):
            random_states.use_rng_states(states, CPU)
    assert torch.equal(before, torch.get_rng_state())


PROGRESSES = {
    "no step": lambda found: {name: x for name, x in found.items() if name != "step"},
    "one more": lambda found: {**found, "novelty": 1},
    "a list": lambda found: [],
}


@pytest.mark.parametrize("case", PROGRESSES)
def test_progress_is_verified_before_it_decides_anything(tmp_path, case):
    """The newer one is refused, is not the best, and is no reason to delete the older one."""
    older = checkpoint.save(tmp_path, Progress(1, score=2.0), *trained(), CPU)
    newer = checkpoint.save(tmp_path, Progress(2, score=1.0), *trained(), CPU)
    assert checkpoint.best(tmp_path) == newer
    rewritten(newer, PROGRESSES[case], "progress")
    with pytest.raises(CheckpointError, match="step-00000002"):
        checkpoint.load(newer)
    assert checkpoint.best(tmp_path) == older
    checkpoint.retain(tmp_path, keep=1)
    assert older in checkpoint.paths(tmp_path)


def test_a_score_that_was_damaged_is_not_the_best(tmp_path):
    older = checkpoint.save(tmp_path, Progress(1, score=2.0), *trained(), CPU)
    newer = checkpoint.save(tmp_path, Progress(2, score=3.0), *trained(), CPU)
    text = (newer / "progress.json").read_text()
    (newer / "progress.json").write_text(text.replace('"score": 3.0', '"score": 1.0'))
    assert checkpoint.best(tmp_path) == older


BELIEVED = ("config.toml", "manifest.json", "labels.json", "metrics.jsonl")


def test_no_flipped_bit_of_a_run_is_believed(kinds, tmp_path, finished):
    """Of what it began with and what it measured; its checkpoints have manifests of their own."""
    run = finished(kinds["images"])

    def believed():
        loaded = load(run)
        return loaded.config, loaded.labels, metrics.read(run / "metrics.jsonl")

    wanted, named = believed(), 0
    for name in BELIEVED:
        data = (run / name).read_bytes()
        for bit in range(0, 8 * len(data), 8 * len(data) // 30 + 1):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            (run / name).write_bytes(flipped)
            try:
                assert believed() == wanted
            except (CheckpointError, ConfigError) as error:  # no TOML any more
                named += name in str(error)
        (run / name).write_bytes(data)
    assert named > 100
    assert believed() == wanted


def test_a_damaged_line_is_seen_before_anything_is_trained(small, tmp_path, finished):
    run = finished(small)
    path = run / "metrics.jsonl"
    path.write_text(path.read_text().replace('"loss": ', '"loss": 1', 1))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=r"metrics.jsonl, line \d is damaged: its checksum differs"):
        resume(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_what_cannot_be_read_is_not_damaged(tmp_path, monkeypatch):
    """The newest is not skipped, and none is removed."""
    for step in (1, 2):
        checkpoint.save(tmp_path, Progress(step), *trained(), CPU)
    read = files.content

    def refused(path):
        if path.parent.name == "step-00000002":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path)

    monkeypatch.setattr(files, "content", refused)
    for act in (checkpoint.newest, checkpoint.best, lambda folder: checkpoint.retain(folder, keep=1)):
        with pytest.raises(ResourceError, match=r"step-00000002: cannot read manifest.json: Permission denied"):
            act(tmp_path)
    assert len(checkpoint.paths(tmp_path)) == 2


def test_a_checkpoint_is_of_the_step_in_its_name(tmp_path):
    path = checkpoint.save(tmp_path, Progress(3, score=1.0), *trained(), CPU)
    path.rename(tmp_path / "step-00000099")
    with pytest.raises(CheckpointError, match=r"progress\.json is of step 3"):
        checkpoint.load(tmp_path / "step-00000099")
    assert checkpoint.best(tmp_path) is None


def test_readers_beside_a_writer_see_no_damage(tmp_path, monkeypatch, caplog):
    """The newest and the best are replaced by better ones while they are read."""
    for choose in (checkpoint.newest, checkpoint.load_best):
        folder = tmp_path / choose.__name__
        checkpoint.save(folder, Progress(1, score=2.0), *trained(), CPU)
        read, moves = files.content, []

        def content(path, folder=folder, read=read, moves=moves):
            if path.name == "model.safetensors" and not moves:
                moves.append(checkpoint.save(folder, Progress(2, score=1.0), *trained(), CPU))
                files.remove_folder(folder / "step-00000001")
            return read(path)

        with monkeypatch.context() as patch:
            patch.setattr(files, "content", content)
            found = choose(folder)
        found, damaged = found if isinstance(found, tuple) else (found, [])
        assert (found.progress.step, damaged, caplog.records) == (2, [], [])


def test_a_link_in_place_of_a_checkpoint_is_damaged(tmp_path):
    (tmp_path / "step-00000007").symlink_to("nowhere")
    for choose in (checkpoint.newest, lambda folder: checkpoint.load(folder / "step-00000007")):
        with pytest.raises(CheckpointError, match="step-00000007"):
            choose(tmp_path)


def test_a_checkpoint_beyond_the_steps_removes_nothing(small, tmp_path, finished):
    """Even one that was never evaluated, which would be at the end of a training."""
    run = finished(small)
    finished = run / "checkpoints/step-00000012"
    beyond = files.load_folder(finished)
    progress = json.loads(beyond["progress.json"])
    beyond["progress.json"] = json.dumps({**progress, "step": 10**9, "evaluated_step": 0, "score": None}).encode()
    files.save_folder(run / "checkpoints/step-1000000000", beyond)
    before = sorted((run / "checkpoints").iterdir())
    assert resume(run).evaluation["step"] == 12
    assert sorted((run / "checkpoints").iterdir()) == before


def test_a_run_beyond_its_steps_ends_at_once(small, tmp_path, finished):
    run = finished(small)
    weights = run / "checkpoints/step-00000012/model.safetensors"
    before = weights.read_bytes()
    config = run / "config.toml"
    config.write_text(config.read_text().replace("steps = 12\n", "steps = 5\n"))
    assert resume(run, edited=True).evaluation["step"] == 12
    assert weights.read_bytes() == before
    assert load(run).step == 12


def test_no_file_is_written_outside_of_a_new_folder(tmp_path):
    with pytest.raises(UnsafeFileError, match=r"'\.\./beside/config\.json' leads out"):
        files.save_folder(tmp_path / "new", {"../beside/config.json": b""})
    assert not list(tmp_path.iterdir())
