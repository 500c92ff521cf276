"""Stages: what changes between them, what is carried over, and a run that stops anywhere."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.core.errors import ConfigError
from regard.models.config import ModelConfig
from regard.models.encoder_decoder_config import EncoderDecoderConfig
from regard.text.tokenizer import ByteTokenizer
from regard_lab.tasks import RecallConfig, TextConfig, build_task
from regard_lab.tasks.text import TextTask
from regard_lab.training import RunConfig, TrainingConfig, load, resume, toml, train
from regard_lab.training.config import Stage
from regard_lab.training.schedule import learning_rate
from regard_lab.training.stages import Stages, model_of, number_at, trained_by
from regard_lab.training.trainer import Trainer
from tests.training.conftest import require_equal, stop_after

STAGES = (
    Stage(steps=3, window=1, length=8),
    Stage(steps=4, window=3, length=16, rate_factor=0.5),
    Stage(steps=2, attention=("softmax", "local(window=7)"), rate_factor=0.25),
)


@pytest.fixture
def staged(tmp_path: Path) -> RunConfig:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{at} is followed by {at + 1}\n" for at in range(60)))
    return RunConfig(
        ModelConfig(dim=16, heads=2, layers=2, dropout=0.1, attention=("local(window=5)",)),
        TextConfig(corpus=str(text), length=32, holdout=0.1, cache=str(tmp_path / "cache")),
        TrainingConfig(
            steps=9, batch_size=2, warmup=2, log_every=2, evaluate_every=4, checkpoint_every=2, threads=1, stages=STAGES
        ),
    )


def lines(run: Path) -> list[dict[str, object]]:
    text = (run / "metrics.jsonl").read_text()
    return [{k: v for k, v in json.loads(line).items() if k not in ("timing", "sha256")} for line in text.splitlines()]


def test_the_stage_of_a_step_and_of_what_was_trained() -> None:
    assert [number_at(STAGES, step) for step in range(10)] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert [trained_by(STAGES, step) for step in range(10)] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert number_at((), 5) == trained_by((), 5) == 0


def test_a_window_goes_to_every_mechanism_that_has_one() -> None:
    config = ModelConfig(layers=3, attention=("local(window=2, dilation=3)", "local:1 + softmax:3", "linear"))
    assert model_of(config, Stage(steps=1, window=9)).attention == (
        "local(window=9, dilation=3)",
        "local(window=9):1 + softmax:3",
        "linear",
    )
    both = EncoderDecoderConfig(attention=("local",), encoder_attention=("softmax", "local(window=4)"))
    found = model_of(both, Stage(steps=1, window=9))
    assert (found.attention, found.encoder_attention) == (("local(window=9)",), ("softmax", "local(window=9)"))
    assert model_of(config, Stage(steps=1, attention=("local",), window=1)).attention == ("local(window=1)",)
    assert model_of(config, Stage(steps=1)) == config
    path = "regard.attention.sparse.local:Local"
    of_paths = ModelConfig(layers=2, attention=(path, f"{path}(window=2, dilation=3):1 + softmax:3"))
    assert model_of(of_paths, Stage(steps=1, window=9)).attention == (
        f"{path}(window=9)",
        f"{path}(window=9, dilation=3):1 + softmax:3",
    )
    with pytest.raises(ConfigError, match=r"window=3, and none of the mechanisms \(softmax\) has one"):
        model_of(ModelConfig(), Stage(steps=1, window=3))


def test_every_stage_has_its_attention_length_and_rate(staged: RunConfig, tmp_path: Path) -> None:
    seen: dict[int, tuple[list[str], int, float]] = {}
    plain = Trainer._step

    def step(trainer: Trainer) -> None:
        mechanisms = trainer.model.mechanisms  # type: ignore[operator]
        specs = [f"{type(m).__name__} {getattr(m, 'window', None)}" for m in mechanisms]  # type: ignore[union-attr]
        plain(trainer)
        rate = trainer.optimizer.param_groups[0]["lr"]
        seen[trainer.progress.step] = (specs, len(trainer.train_examples[0].inputs), rate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", step)
        result = train(staged, tmp_path / "run")
    for number, (specs, length, rate) in seen.items():
        stage = 0 if number <= 3 else 1 if number <= 7 else 2
        assert specs == [["Local 1"] * 2, ["Local 3"] * 2, ["Softmax None", "Local 7"]][stage]
        assert length == [8, 16, 32][stage]
        usual = learning_rate(number - 1, peak=1e-3, steps=9, warmup=2, minimum_ratio=0.1)
        assert rate == usual * [1, 0.5, 0.25][stage]
    found = [(line["kind"], line["step"], line["stage"]) for line in lines(result.path)]
    trained = [(step, stage) for kind, step, stage in found if kind == "train"]
    assert trained == [(2, 1), (3, 1), (4, 2), (6, 2), (7, 2), (8, 3), (9, 3)]
    assert [(step, stage) for kind, step, stage in found if kind == "evaluate"] == [
        (3, 1),
        (4, 2),
        (7, 2),
        (8, 3),
        (9, 3),
    ]
    assert len({line["tokens"] for line in lines(result.path) if line["kind"] == "evaluate"}) == 1
    model = load(result.path).model
    assert [type(m).__name__ for m in model.mechanisms] == ["Softmax", "Local"]  # type: ignore[union-attr]


def test_stages_that_change_nothing_are_one_training(staged: RunConfig, tmp_path: Path) -> None:
    """Bit for bit: weights, running means and their step counts, random states and data order are carried over."""
    plain = replace(staged, training=replace(staged.training, stages=()))
    cut = replace(staged, training=replace(staged.training, stages=tuple(Stage(steps=n) for n in (2, 3, 4))))
    require_equal(train(cut, tmp_path / "cut").path, train(plain, tmp_path / "plain").path)
    with pytest.raises(AssertionError):
        require_equal(train(staged, tmp_path / "staged").path, tmp_path / "plain")


@pytest.mark.parametrize("last", [1, 3, 4, 7])
def test_a_run_stopped_after_any_step_goes_on_bit_for_bit(staged: RunConfig, tmp_path: Path, last: int) -> None:
    whole = train(staged, tmp_path / "whole").path

    with pytest.raises(RuntimeError, match="stopped"):
        train(staged, tmp_path / "run", on_progress=stop_after(last))
    run = resume(tmp_path / "run").path if last > 1 else train(staged, tmp_path / "run", resume=True).path
    require_equal(run, whole)
    assert lines(run) == lines(whole)


@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_checkpoint_is_loaded_as_the_stage_that_made_it(staged: RunConfig, tmp_path: Path, step: int) -> None:
    settings = replace(staged.training, checkpoint_every=1, keep=9)

    with pytest.raises(RuntimeError, match="stopped"):
        train(replace(staged, training=settings), tmp_path / "run", on_progress=stop_after(step, "checkpoint"))
    model = load(tmp_path / "run").model
    assert {m.window for m in model.mechanisms} == {1 if step <= 3 else 3}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (
            Stage(steps=6, attention=("shaw(max_distance=2)",)),
            r"stage 2 has other weights than stage 1: .*Weights are carried",
        ),
        (Stage(steps=6, length=33), r"length=33, more than task.length=32"),
        (Stage(steps=6, attention=("softmax",), window=3), r"window=3, and none of the mechanisms \(softmax\) has one"),
        (Stage(steps=6, attention=("loca",)), r"unknown mechanism 'loca': choose one of\n  local: "),
        (Stage(steps=6, attention=("local",) * 3), r"attention must be a tuple of one specification"),
    ],
)
def test_what_cannot_follow_is_refused_before_any_work(
    staged: RunConfig, tmp_path: Path, stage: Stage, message: str
) -> None:
    wrong = replace(staged, training=replace(staged.training, stages=(Stage(steps=3), stage)))
    with pytest.raises(ConfigError, match=message):
        train(wrong, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_bare_trainer_has_no_stages(staged: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.stages change the network"):
        Trainer(torch.nn.Linear(1, 1), None, staged.training, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 0}, "steps of a stage must be at least 1, got 0"),
        ({"steps": 1, "window": -1}, "window of a stage must be at least 0, got -1"),
        ({"steps": 1, "length": 1}, "length of a stage must be at least 2, got 1"),
        ({"steps": 1, "rate_factor": 0.0}, "rate_factor of a stage must be positive, got 0.0"),
    ],
)
def test_impossible_values_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Stage(**values)  # type: ignore[arg-type]


def test_steps_are_those_of_the_stages() -> None:
    with pytest.raises(ConfigError, match="steps must be those of the stages together, 9, got 10"):
        TrainingConfig(steps=10, stages=STAGES)


def test_as_toml(staged: RunConfig, tmp_path: Path) -> None:
    toml.save(staged, tmp_path / "config.toml")
    assert toml.load(tmp_path / "config.toml") == staged
    (tmp_path / "tables.toml").write_text(
        "[training]\nsteps = 5\n[[training.stages]]\nsteps = 2\nwindow = 4\n[[training.stages]]\nsteps = 3\n"
    )
    found = toml.load(tmp_path / "tables.toml").training.stages
    assert found == (Stage(steps=2, window=4), Stage(steps=3))
    (tmp_path / "wrong.toml").write_text(
        "[training]\nsteps = 5\n[[training.stages]]\nsteps = 2\nwindows = 4\n[[training.stages]]\nsteps = 0\n"
    )
    with pytest.raises(ConfigError) as error:
        toml.load(tmp_path / "wrong.toml")
    assert "training.stages.0.windows: unknown key; did you mean 'window'" in str(error.value).replace('"', "'")
    assert "training.stages.1: value error, steps of a stage must be at least 1, got 0" in str(error.value)


def test_the_data_of_a_stage_has_the_tokenizer_and_the_seed_of_the_run(staged: RunConfig) -> None:
    tokenizer = build_task(replace(staged.task, tokenizer="bpe", vocab_size=270)).tokenizer  # type: ignore[arg-type]
    assert tokenizer is not None
    own = Stages(staged, TextTask(staged.task, tokenizer=tokenizer)).data(0)  # type: ignore[arg-type]
    assert own.tokenizer is not None
    assert own.tokenizer.to_json() == tokenizer.to_json() != ByteTokenizer().to_json()
    task = RecallConfig(length=32, num_pairs=2)
    for seed in (0, 7):
        config = replace(staged, task=task, training=replace(staged.training, seed=seed))
        short = Stages(config, build_task(task, seed=seed)).data(1).examples("train")[0]
        wanted = build_task(replace(task, length=16), seed=seed).examples("train")[0]
        assert short.inputs.tolist() == wanted.inputs.tolist()
