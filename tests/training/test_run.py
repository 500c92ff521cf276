import filecmp
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.core.errors import CheckpointError, ConfigError, ResourceError, UnsafeFileError
from regard.models import LanguageModel, ModelConfig
from regard_lab.tasks import CopyConfig, RecallConfig, TextConfig, build_task
from regard_lab.training import RunConfig, TrainingConfig, evaluate, load, resume, toml, train
from regard_lab.training import checkpoint as checkpoints


@pytest.fixture
def text(tmp_path) -> RunConfig:
    """A small text of one's own, named by a path that depends on the working directory."""
    words = "the state of the union is a text about the state of things and of unions\n"
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(words[index % 40 :] for index in range(120)))
    return RunConfig(
        model=ModelConfig(dim=16, heads=2, layers=1, vocab_size=99, max_length=8),
        task=TextConfig(corpus="corpus.txt", length=32, cache=str(tmp_path / "cache")),
        training=TrainingConfig(steps=4, batch_size=2, warmup=0, learning_rate=0.01, evaluate_every=2, threads=1),
    )


def test_from_text_to_text(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = train(text, "runs/first")
    run = tmp_path / "runs" / "first"
    assert result.path == Path("runs/first")
    assert sorted(path.name for path in run.iterdir() if path.name != ".lock") == [
        "checkpoints",
        "config.toml",
        "env.json",
        "manifest.json",
        "metrics.jsonl",
        "tokenizer.json",
    ]
    assert [line["step"] for line in result.metrics if line["kind"] == "evaluate"] == [2, 4]
    assert result.evaluation["step"] == 4

    monkeypatch.chdir("/")  # the run knows where its text is
    loaded = load(run)
    assert loaded.step == 4
    assert (loaded.config.model.vocab_size, loaded.config.model.max_length) == (256, 32)
    assert loaded.config == toml.load(run / "config.toml") == result.config
    written = loaded.generate("the state", max_new_tokens=12, seed=3)
    assert isinstance(written, str)
    assert written == loaded.generate("the state", max_new_tokens=12, seed=3)
    assert loaded.generate("the state", max_new_tokens=12, temperature=0.0) == load(run).generate(
        "the state", max_new_tokens=12, temperature=0.0
    )

    report = evaluate(run)
    for name in ("nats_per_token", "bits_per_byte", "accuracy", "tokens", "bytes"):
        assert report[name] == pytest.approx(result.evaluation[name], rel=1e-6), name
    assert (report["split"], report["task"]) == ("valid", "text")
    assert sum(report["documents"]["bytes"]) == report["bytes"]
    assert evaluate(loaded, split="test") != report
    other = tmp_path / "other.txt"
    other.write_text(("another text " * 9 + "\n") * 99)
    task = TextConfig(corpus=str(other), length=32, cache=str(tmp_path / "cache"))
    assert evaluate(loaded, task)["nats_per_token"] != report["nats_per_token"]


def test_nothing_is_overwritten(small, tmp_path, finished):
    run = finished(small)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=f"{run} already holds a run; choose another name, or .*--resume {run}"):
        train(small, run)
    with pytest.raises(ConfigError, match="another configuration") as caught:
        train(replace(small, training=replace(small.training, steps=13, seed=1)), run, resume=True)
    assert "training.steps: 12 there, 13 asked for" in str(caught.value)
    assert "training.seed: 0 there, 1 asked for" in str(caught.value)
    with pytest.raises(ConfigError, match=r"task.name: 'recall' there, 'copy' asked for"):
        train(replace(small, task=CopyConfig(vocab_size=16, length=16)), run, resume=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("mine", "file"):
        for again in (False, True):
            with pytest.raises(ConfigError, match="is not a run"):
                train(small, tmp_path / name, resume=again)
    (tmp_path / "empty").mkdir()
    train(small, tmp_path / "empty")


def test_resume_starts_what_is_not_there_yet_when_it_has_a_configuration(small, tmp_path):
    with pytest.raises(ConfigError, match="not a run"):
        resume(tmp_path / "run")
    assert train(small, tmp_path / "run", resume=True).evaluation == resume(tmp_path / "run").evaluation


def test_a_configuration_that_cannot_be_built_leaves_nothing(small, tmp_path):
    for wrong in (
        replace(small, model=replace(small.model, attention=("sofmax",))),
        replace(small, model=replace(small.model, position="rotari")),
    ):
        with pytest.raises(ConfigError, match="did you mean"):
            train(wrong, tmp_path / "run")
        assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(small, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ResourceError, match=f"cannot write {tmp_path}/file/run"):
        train(small, tmp_path / "file" / "run")


def test_damaged_checkpoints_are_skipped_reported_and_replaced(small, tmp_path, trained, finished):
    whole = trained(small)
    finished(small)
    newest = tmp_path / "run" / "checkpoints" / "step-00000012"
    (newest / "optimizer.safetensors").write_bytes(b"half")
    assert load(tmp_path / "run").step == 8
    result = resume(tmp_path / "run")
    assert result.damaged == (newest,)
    assert result.evaluation == whole.evaluation
    assert [path.name for path in checkpoints.paths(newest.parent)] == ["step-00000008", "step-00000012.1"]
    whole_model = whole.path / "checkpoints" / "step-00000012" / "model.safetensors"
    assert filecmp.cmp(newest.parent / "step-00000012.1" / "model.safetensors", whole_model, shallow=False)
    for path in checkpoints.paths(newest.parent):
        (path / "manifest.json").write_text("{}")
    for act in (load, resume, evaluate):
        with pytest.raises(CheckpointError, match="no checkpoint"):
            act(tmp_path / "run")


def test_the_best_checkpoint_is_kept_and_loaded(small, tmp_path):
    """A rate so high that validation gets worse after the first evaluation."""
    training = replace(
        small.training, learning_rate=3.0, schedule="constant", evaluate_every=2, checkpoint_every=2, keep=1
    )
    result = train(replace(small, training=training), tmp_path / "run")
    scores = {line["step"]: line["nats_per_token"] for line in result.metrics if line["kind"] == "evaluate"}
    best = min(scores, key=scores.__getitem__)
    assert best != 12
    assert load(tmp_path / "run", best=True).step == best
    assert load(tmp_path / "run").step == 12
    assert evaluate(load(tmp_path / "run", best=True))["nats_per_token"] == pytest.approx(scores[best], rel=1e-6)


def test_an_edited_model_does_not_load(small, tmp_path, finished):
    finished(small)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("dim = 16", "dim = 32"))
    for act in (load, resume):
        with pytest.raises(CheckpointError, match=r"config.toml was edited .*\n  model.dim: 16 when it began, 32 now$"):
            act(tmp_path / "run")
    for _ in range(2):  # what was refused is not agreed to
        with pytest.raises(CheckpointError, match=r"another model.*config.toml"):
            resume(tmp_path / "run", edited=True)
        with pytest.raises(CheckpointError, match="was edited"):
            resume(tmp_path / "run")


def test_the_way_out_of_an_edit_repeats_that_the_run_is_trusted(small, tmp_path, finished):
    finished(small)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("steps = 12\n", "steps = 13\n"))
    with pytest.raises(
        CheckpointError, match=r"/run --edited --trust \(in Python: resume\(\.\.\., edited=True, trust=True\)"
    ):
        resume(tmp_path / "run", trust=True)
    with pytest.raises(CheckpointError, match=r"/run --edited \(in Python"):
        resume(tmp_path / "run")


def test_an_edited_configuration_is_agreed_to_once(small, tmp_path, finished):
    finished(small)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("steps = 12\n", "steps = 13\n"))
    with pytest.raises(CheckpointError, match=r"--edited .*edited=True.*\n  training.steps: 12 when it began, 13 now$"):
        resume(tmp_path / "run")
    with pytest.raises(CheckpointError, match="was edited"):
        train(small, tmp_path / "run", resume=True)
    assert resume(tmp_path / "run", edited=True).evaluation["step"] == 13
    assert resume(tmp_path / "run").evaluation["step"] == 13
    assert load(tmp_path / "run").step == 13
    config.write_text(config.read_text() + "# a remark\n")
    with pytest.raises(CheckpointError, match="only spaces and comments differ"):
        resume(tmp_path / "run")


def test_loading_what_is_no_run(small, tmp_path):
    with pytest.raises(ConfigError, match="not a run"):
        load(tmp_path)
    toml.save(small, tmp_path / "config.toml")
    with pytest.raises(CheckpointError, match=r"cannot read .*manifest\.json"):
        load(tmp_path)


def test_a_task_without_text_does_not_generate(small, tmp_path, finished):
    finished(small)
    loaded = load(tmp_path / "run")
    assert loaded.tokenizer is None
    with pytest.raises(ConfigError, match="recall, which has no text"):
        loaded.generate("x")


def test_evaluating_a_model_of_ones_own(small):
    model = LanguageModel(small.model)
    task = build_task(small.task)
    report = evaluate(model, task, "test")
    assert report["tokens"] == 12
    assert report == evaluate(model, small.task, "test")
    with pytest.raises(ConfigError, match="needs a task"):
        evaluate(model)
    with pytest.raises(ConfigError, match="64 tokens, the model 16"):
        evaluate(model, RecallConfig(vocab_size=64, length=16, num_pairs=2))


def test_env_json_says_with_what_and_not_who(small, tmp_path, finished):
    finished(small)
    path = tmp_path / "run" / "env.json"
    found = json.loads(path.read_text())
    assert found["versions"]["torch"].split("+")[0] in torch.__version__
    assert found["threads"] == 1
    assert found["device"] in ("cpu", "mps") or torch.cuda.is_available()
    for secret in (str(tmp_path), str(Path.home()), os.uname().nodename):
        assert len(secret) < 4 or secret not in path.read_text()
    resume(tmp_path / "run")
    assert json.loads(path.read_text()) == found
    path.write_text(json.dumps({**found, "threads": 7}))
    for _ in range(2):
        resume(tmp_path / "run")
        assert json.loads(path.read_text()) == {**found, "threads": 7, "continued": [found]}
    path.write_text("[]")
    with pytest.raises(CheckpointError, match=r"env\.json is damaged"):
        resume(tmp_path / "run")


def test_no_pickle_is_read(small, tmp_path, finished):
    """A checkpoint is safetensors and JSON; a pickle under its name does not verify."""
    finished(small)
    for path in (tmp_path / "run").rglob("*"):
        assert path.is_dir() or path.suffix in (".safetensors", ".json", ".jsonl", ".toml") or path.name == ".lock"
    for path in checkpoints.paths(tmp_path / "run" / "checkpoints"):
        torch.save({"x": torch.zeros(1)}, path / "model.safetensors")
    with pytest.raises((CheckpointError, UnsafeFileError)):
        load(tmp_path / "run")
