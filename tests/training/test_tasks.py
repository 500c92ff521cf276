"""Every task trains the kind of model that it needs, and a loaded run does what it was trained for."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.core.errors import CheckpointError, ConfigError, InputError, LimitError, ShapeError, UnsupportedError
from regard.models import Classifier, EncoderConfig, EncoderDecoder, EncoderDecoderConfig, MaskedLanguageModel
from regard_lab.tasks import ClassificationConfig, TranslationConfig, build_task
from regard_lab.training import RunConfig, TrainingConfig, evaluate, load, toml, train


@pytest.fixture(scope="module")
def poems(tmp_path_factory) -> Path:
    """A run on classes of texts."""
    task = ClassificationConfig(data="song_ci", num_classes=2, length=64)
    training = TrainingConfig(steps=2, batch_size=4, warmup=1, evaluate_examples=4, threads=1)
    config = RunConfig(EncoderConfig(dim=16, heads=2, layers=1), task, training)
    return train(config, tmp_path_factory.mktemp("poems") / "run").path


@pytest.mark.parametrize("name", ["translation", "masked", "images"])
def test_a_run_is_what_was_asked_for_and_loads(kinds, tmp_path, name, trained):
    result = trained(kinds[name])
    loaded = load(result.path)
    kind = {"translation": EncoderDecoder, "masked": MaskedLanguageModel, "images": Classifier}[name]
    assert type(loaded.model) is kind
    assert loaded.config == toml.load(result.path / "config.toml") == result.config
    assert [line["step"] for line in result.metrics if line["kind"] == "evaluate"] == [3, 6]
    report = evaluate(result.path)
    for key in ("nats_per_token", "accuracy", "tokens"):
        assert report[key] == pytest.approx(result.evaluation[key], rel=1e-6), key
    assert next(iter(report["metrics"])) == "model"
    assert (result.path / "labels.json").exists() == (name == "images")
    assert (result.path / "tokenizer.json").exists() == (name != "images")


def test_what_the_task_decides_of_the_model(kinds):
    from regard_lab.training.run import fitted

    found = {name: fitted(config, build_task(config.task)).model for name, config in kinds.items()}
    assert (found["images"].vocab_size, found["images"].input_dim) == (0, 16)
    assert found["masked"].vocab_size == 257
    pair = found["translation"]
    assert (pair.vocab_size, pair.start_token, pair.end_token, pair.source_vocab_size) == (256, 0, 0, None)


def test_a_model_of_another_kind_is_refused(kinds):
    with pytest.raises(
        ConfigError, match=r"task masked trains a model of kind EncoderConfig, got EncoderDecoderConfig"
    ):
        replace(kinds["masked"], model=EncoderDecoderConfig())
    assert type(RunConfig(task=TranslationConfig()).model) is EncoderDecoderConfig
    pictures = RunConfig(task=kinds["images"].task).model
    assert (pictures.cls_token, pictures.position) == (True, "learned")


def test_translate(kinds, tmp_path, trained):
    loaded = load(trained(kinds["translation"]).path)
    sentences = ["number 7", "number 123456", "x"]
    found = loaded.translate(sentences, batch_size=2)
    assert [loaded.translate([sentence])[0] for sentence in sentences] == found
    assert all(len(text.encode()) <= 4 * 20 for text in found)  # broken characters become U+FFFD, of three bytes
    greedy, short = (loaded.translate(["number 7"], max_new_tokens=most, beams=1)[0] for most in (20, 1))
    assert short == greedy[:1]
    for wrong, error, message in (
        ([" "], InputError, "sentence 1 is empty"),
        (["x", "y" * 20], LimitError, "sentence 2 takes 21 tokens, and .* trained on at most 20"),
        ("x", ConfigError, "a list of sentences"),
    ):
        with pytest.raises(error, match=message):
            loaded.translate(wrong)
    with pytest.raises(ConfigError, match="batch_size must be at least 1"):
        loaded.translate(["x"], batch_size=0)
    with pytest.raises(ConfigError, match=r"was trained on translation, so it cannot continue text; use `\.translate`"):
        loaded.generate("x")


def test_numbers_that_were_held_out_are_spelled_out_exactly(tmp_path):
    """The positive control of the whole way: a file, training, beam search, chrF. 900 numbers train, 50 test."""
    words = ["cero", "uno", "dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve"]
    order = np.random.default_rng(0).permutation(1000)
    rows = (f"{number:03}\t{' '.join(words[int(digit)] for digit in f'{number:03}')}\n" for number in order)
    (tmp_path / "numbers.tsv").write_text("".join(rows))
    task = TranslationConfig(corpus=str(tmp_path / "numbers.tsv"), tokenizer="bytes", length=24)
    model = EncoderDecoderConfig(dim=32, heads=4, layers=1)
    training = TrainingConfig(steps=250, batch_size=32, learning_rate=0.01, warmup=20, threads=1)
    run = train(RunConfig(model, task, training), tmp_path / "run").path
    rows = evaluate(run, split="test")["metrics"]
    assert rows["model"]["chrf"] == 100
    assert max(values["chrf"] for name, values in rows.items() if name != "model") < 50
    assert load(run).translate(["907"]) == ["nueve cero siete"]


def test_fill(kinds, tmp_path, trained):
    loaded = load(trained(kinds["masked"]).path)
    tokens = torch.tensor([[*b"12 i", 256, *b" x"]])
    logits = loaded.model(tokens).logits[0, 4].clone()
    logits[[0, 256]] = -math.inf
    best = bytes([int(logits.argmax())]).decode("utf-8", "replace")
    assert loaded.fill("12 i[MASK] x") == f"12 i{best} x"
    assert len(loaded.fill("[MASK][MASK]b[MASK]").encode()) >= 4
    with pytest.raises(InputError, match=r"has no \[MASK\]"):
        loaded.fill("x")
    with pytest.raises(LimitError, match="the text takes 17 tokens"):
        loaded.fill("[MASK]" + "x" * 16)


def test_the_likeliest_mask_is_filled_first(kinds, tmp_path, monkeypatch, trained):
    """A model that is sure of the last mask, and then says that whatever follows a `b` is preceded by an `a`."""
    loaded = load(trained(kinds["masked"]).path)

    class Sure(MaskedLanguageModel):
        def forward(self, tokens, *, key_mask=None):
            logits = torch.zeros(1, tokens.shape[1], 257)
            logits[0, -1, ord("b")] = 20.0
            logits[0, 0, ord("a" if tokens[0, -1] == ord("b") else "z")] = 10.0
            return type("Output", (), {"logits": logits})

    monkeypatch.setattr(type(loaded.model), "forward", Sure.forward)
    assert loaded.fill("[MASK] [MASK]") == "a b"


def test_classify_images(kinds, tmp_path):
    settings = replace(
        kinds["images"].training, steps=60, batch_size=8, learning_rate=0.01, evaluate_every=60, checkpoint_every=60
    )
    config = replace(kinds["images"], model=replace(kinds["images"].model, pooling="mean"), training=settings)
    loaded = load(train(config, tmp_path / "run").path)
    assert evaluate(loaded, split="test")["accuracy"] == 1.0  # the positive control: the halves are told apart
    examples = build_task(config.task).examples("valid")
    for index in range(4):
        found = loaded.classify(examples.images[index])
        assert list(found) == sorted(found, key=found.__getitem__, reverse=True)
        assert sum(found.values()) == pytest.approx(1, abs=1e-12)
        assert next(iter(found)) == str(examples.labels[index])
    for wrong in (
        np.zeros((8, 8), np.float32),
        np.zeros((8, 12), np.uint8),
        np.zeros((8, 8, 3), np.uint8),
        np.zeros(8),
    ):
        with pytest.raises(ShapeError, match="reads images of 4 patches of 4 x 4"):
            loaded.classify(wrong)
    with pytest.raises(ConfigError, match="was trained on images"):
        loaded.classify("text")
    (tmp_path / "run" / "labels.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"labels\.json is damaged"):
        load(tmp_path / "run")
    (tmp_path / "run" / "labels.json").unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*labels\.json"):
        load(tmp_path / "run")


def test_classify_texts(poems):
    loaded = load(poems)
    found = loaded.classify("明月几时有")
    assert set(found) == {"浣溪沙", "水调歌头"}
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    text = "明月几时有把酒问青天" * 9  # 270 bytes: five pieces of 63 bytes at most
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
    pieces = [torch.tensor([[0, *ids[at : at + 63]]]) for at in range(0, len(ids), 63)]
    with torch.no_grad():
        wanted = torch.stack([loaded.model(piece).logits[0].double().softmax(-1) for piece in pieces]).mean(0)
    assert len(pieces) == 5
    assert loaded.classify(text) == pytest.approx(
        dict(zip(loaded.labels.classes, wanted.tolist(), strict=True)), abs=1e-9
    )
    with pytest.raises(InputError, match="the text is empty"):
        loaded.classify("\n")
    with pytest.raises(ConfigError, match="was trained on text; give it"):
        loaded.classify(np.zeros((8, 8), np.uint8))
    with pytest.raises(ConfigError, match=r"so it cannot translate; use `\.classify`"):
        loaded.translate(["x"])
    labels = json.loads((poems / "labels.json").read_text(encoding="utf-8"))
    assert labels["classes"] == ["浣溪沙", "水调歌头"]


def test_a_task_with_other_classes_is_refused(poems):
    task = ClassificationConfig(data="song_ci", num_classes=3, length=64)
    with pytest.raises(ConfigError, match="the task has 3 classes, the model 2"):
        evaluate(poems, task)


def test_metrics_stand_beside_baselines(kinds, tmp_path, poems, trained):
    rows = evaluate(trained(kinds["translation"]).path, beams=1)["metrics"]
    assert list(rows) == ["model", "the source as it is", "most frequent translation", "most frequent words"]
    assert all(set(row) == {"chrf", "bleu"} for row in rows.values())
    rows = evaluate(poems, limit=30)["metrics"]
    assert list(rows) == ["model", "always 水调歌头", "words without their order"]  # longer poems, more examples
    run = trained(kinds["masked"]).path
    report = evaluate(run, limit=5)
    assert report["metrics"]["model"] == {"accuracy": report["accuracy"], "nats": report["nats_per_token"]}
    with pytest.raises(ConfigError, match="evaluated without beam search"):
        evaluate(run, beams=2)


@pytest.mark.parametrize(("name", "package"), [("translation", "sacrebleu"), ("images", "scikit-learn")])
def test_a_metric_without_its_library_says_what_to_install(kinds, tmp_path, monkeypatch, name, package, trained):
    import sys

    run = trained(kinds[name]).path
    monkeypatch.setitem(sys.modules, {"scikit-learn": "sklearn.metrics"}.get(package, package), None)
    with pytest.raises(UnsupportedError, match=rf"needs the {package} package: pip install 'regard\[metrics\]'"):
        evaluate(run)


def test_hidden_sentences_train_a_loss_of_their_own(kinds, tmp_path):
    model = EncoderConfig(
        dim=16, heads=2, layers=1, attention=("etc(window=4, num_global=0)",), position="none", cpc_weight=0.5
    )
    config = replace(
        kinds["masked"],
        model=model,
        task=replace(kinds["masked"].task, length=30),
        training=replace(kinds["masked"].training, log_every=1),
    )
    assert (config.task.summaries, config.task.hidden_sentences) == (32, 0.15)
    result = train(config, tmp_path / "run")
    assert toml.load(result.path / "config.toml") == result.config
    lines = [line for line in result.metrics if line["kind"] == "train"]
    assert max(line["losses"]["cpc"] for line in lines) > 0
    for line in lines:
        assert line["objective"] == pytest.approx(line["loss"] + 0.5 * line["losses"]["cpc"], rel=1e-5)
    loaded = load(result.path)
    assert loaded.model.reads_marks == "segments"
    filled = loaded.fill("1[MASK] is. [MASK]2")
    assert "[MASK]" not in filled
    assert "\0" not in filled
    with pytest.raises(ConfigError, match="summaries=0 is not possible; it must be more than 0 for a model with a cpc"):
        replace(config, task=replace(kinds["masked"].task, summaries=0))


@pytest.mark.parametrize("spec", ["longformer(window=8, num_global=0)", "etc(window=8, num_global=0)", "softmax"])
def test_a_text_with_summaries_is_classified_as_in_evaluation(tmp_path, spec):
    task = ClassificationConfig(data="song_ci", num_classes=2, length=48, summaries=4)
    training = TrainingConfig(steps=1, batch_size=2, warmup=0, evaluate_examples=2, threads=1)
    model = EncoderConfig(dim=16, heads=2, layers=1, attention=(spec,))
    run = train(RunConfig(model, task, training), tmp_path / "run").path
    loaded, data = load(run), build_task(task)
    examples = data.examples("valid")
    text = data.tokenizer.decode(examples.ids[0])
    assert loaded.config.model.vocab_size == 257
    found = loaded.classify(text)
    pieces = [at for at in range(len(examples)) if examples[at].document == 0]
    assert len(pieces) > 1
    total = torch.zeros(2, dtype=torch.float64)
    for at in pieces:
        example = examples[at]
        marks = torch.from_numpy(example.marks)[None]
        marks = {} if spec == "softmax" else {"marks": marks.clamp(max=0) if "longformer" in spec else marks}
        with torch.no_grad():
            total += loaded.model(torch.from_numpy(example.inputs)[None], **marks).logits[0].double().softmax(-1)
    for name, share in zip(data.classes, (total / len(pieces)).tolist(), strict=True):
        assert found[name] == pytest.approx(share, abs=2e-6)
