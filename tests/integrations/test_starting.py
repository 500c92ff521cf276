"""A training that starts from weights begins as they are, resumes to the bit without them, and is an ordinary run."""

import filecmp
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from regard.core.errors import CheckpointError, ConfigError, NumericsError
from regard.integrations import pretrained
from regard.integrations.pretrained import PretrainedTokenizer
from regard.models import (
    Encoder,
    EncoderConfig,
    EncoderDecoder,
    LanguageModel,
    MaskedLanguageModel,
    ModelConfig,
    presets,
)
from regard_lab.networks import evaluation
from regard_lab.networks.starting import start
from regard_lab.report.explore import explore
from regard_lab.tasks import MaskedConfig, RecallConfig, TextConfig
from regard_lab.training import RunConfig, RunResult, TrainingConfig, evaluate, load, resume, train
from regard_lab.training.checkpoint import newest

LINES = [f"{at} is followed by {at + 1}, né.\n" for at in range(300)]
SHAPE = {"dim": 16, "heads": 4, "layers": 2, "vocab_size": 310, "max_length": 48}
TRAINING = TrainingConfig(
    steps=6, batch_size=4, warmup=1, learning_rate=0.01, evaluate_every=3, checkpoint_every=2, log_every=2, threads=1
)


@pytest.fixture(scope="module")
def tokenizer() -> PretrainedTokenizer:
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    model.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    letters, special = pre_tokenizers.ByteLevel.alphabet(), ["<s>", "</s>"]
    model.train_from_iterator(
        LINES,
        trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=letters, show_progress=False),
    )
    return PretrainedTokenizer(model, 310)


@pytest.fixture
def published(tmp_path, tokenizer) -> Path:
    """A folder with a small Llama, whose tokenizer leaves ten of its rows without a token."""
    model = LanguageModel(presets.build("llama", **SHAPE, kv_heads=2, attention_dropout=0.1))
    with torch.no_grad():  # a new network of this shape has other weights
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    pretrained.export(model, tmp_path / "llama", tokenizer=tokenizer, stop_tokens=(1,))
    return tmp_path / "llama"


@pytest.fixture
def text(tmp_path) -> TextConfig:
    path = tmp_path / "lines.txt"
    path.write_text("".join(LINES), encoding="utf-8")
    return TextConfig(corpus=str(path), length=24, cache=str(tmp_path / "cache"))


def evaluations(run: RunResult) -> dict[int, float]:
    return {line["step"]: line["bits_per_byte"] for line in run.metrics if line["kind"] == "evaluate"}  # type: ignore[misc]


@pytest.mark.parametrize("attention", [None, "local(window=3)"])
def test_it_begins_as_the_weights_are(tmp_path, published, text, attention):
    base = pretrained.load(published, attention=attention)
    before = evaluation.evaluate(base, text, split="valid")
    run = train(RunConfig(task=text, training=TRAINING), tmp_path / "run", start=start(published, attention=attention))
    found = evaluations(run)
    assert list(found) == [0, 3, 6]
    assert found[0] == pytest.approx(before["bits_per_byte"], rel=1e-6)
    assert found[6] < found[3] < found[0] - 0.5
    assert run.config.model.attention == ((attention or "softmax"),)
    assert run.config.task.tokenizer == "published"
    assert evaluate(run.path)["bits_per_byte"] == pytest.approx(found[6], rel=1e-6)


def test_a_killed_run_needs_what_it_started_from_no_more(tmp_path, published, text):
    """Killed after the first evaluation and in the middle; dropout draws from the random state."""
    config, weights = RunConfig(task=text, training=TRAINING), start(published)
    config = replace(config, model=replace(weights.shape, dropout=0.1))
    whole = train(config, tmp_path / "whole", start=weights)
    assert whole.config.model.dropout == 0.1
    for kind, step in (("evaluate", 0), ("step", 5)):
        out = tmp_path / kind
        torch.rand(step + 1)  # whatever was drawn before

        def kill(event, kind=kind, step=step):
            if (event["kind"], event["step"]) == (kind, step):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(config, out, start=start(published), on_progress=kill)
        published.rename(tmp_path / "gone")
        again = resume(out)
        (tmp_path / "gone").rename(published)
        ours, theirs = (newest(run.path / "checkpoints")[0] for run in (again, whole))
        assert ours is not None
        assert theirs is not None
        for name in ("model.safetensors", "optimizer.safetensors", "rng.safetensors"):
            assert filecmp.cmp(ours.path / name, theirs.path / name, shallow=False), (kind, name)
        assert evaluations(again) == evaluations(whole)


def test_it_is_said_where_the_weights_came_from(tmp_path, published, text):
    config = RunConfig(task=text, training=replace(TRAINING, steps=1))
    run = train(config, tmp_path / "run", start=start(published)).path
    said = json.loads((run / "start.json").read_text())
    assert said["source"] == str(published.resolve())
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        assert said["files"][name]["sha256"] == hashlib.sha256((published / name).read_bytes()).hexdigest()
    assert train(config, run, start=start(published), resume=True).path == run
    with pytest.raises(ConfigError, match=r"started from .*llama .*, not from new weights"):
        train(load(run).config, run, resume=True)
    shutil.rmtree(published)
    pretrained.export(LanguageModel(load(run).config.model), published, tokenizer=load(run).tokenizer)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="choose another name"):
        train(config, run, start=start(published), resume=True)
    (run / "start.json").write_text((run / "start.json").read_text().replace("llama", "lama"))
    with pytest.raises(CheckpointError, match=r"start\.json is damaged"):
        load(run)


def test_without_its_first_checkpoint_it_does_not_begin_anew(tmp_path, published, text):
    config = RunConfig(task=text, training=replace(TRAINING, steps=1))
    run = train(config, tmp_path / "run", start=start(published)).path
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match="started from weights that its first checkpoint held"):
        resume(run, steps=2)


def test_the_run_is_an_ordinary_one(tmp_path, published, text, tokenizer):
    run = train(RunConfig(task=text, training=TRAINING), tmp_path / "run", start=start(published)).path
    loaded = load(run)
    assert (loaded.step, loaded.stop_tokens) == (6, (1,))
    assert loaded.generate("12 is", max_new_tokens=5, temperature=0)
    assert replace(loaded, stop_tokens=tuple(range(310))).generate("12 is", max_new_tokens=5, temperature=0) == ""
    shown = explore(run, "12 is followed by 13", out=tmp_path / "page.html")
    assert "".join(shown["models"][0]["tokens"]) == "12 is followed by 13"
    again = load(run)
    assert isinstance(again.tokenizer, PretrainedTokenizer)
    pretrained.export(again.model, tmp_path / "tuned", tokenizer=again.tokenizer, stop_tokens=again.stop_tokens)
    tuned = pretrained.load(tmp_path / "tuned")
    tokens = torch.tensor([[3, 7, 28, 1]])
    with torch.no_grad():
        torch.testing.assert_close(tuned.decoder(tokens).logits, again.model(tokens).logits, rtol=0, atol=0)
    assert evaluation.evaluate(tuned, text, split="valid")["bits_per_byte"] == pytest.approx(
        evaluate(run)["bits_per_byte"], rel=1e-6
    )
    further = train(RunConfig(task=text, training=replace(TRAINING, steps=1)), tmp_path / "further", start=start(run))
    assert evaluations(further)[0] == pytest.approx(evaluate(run)["bits_per_byte"], rel=1e-6)


def test_a_run_starts_another_one(tmp_path, text):
    training = replace(TRAINING, steps=2)
    kinds = {
        "text": RunConfig(
            ModelConfig(dim=16, heads=2, layers=1), replace(text, tokenizer="bpe", vocab_size=280), training
        ),
        "masked": RunConfig(
            EncoderConfig(dim=16, heads=2, layers=1),
            MaskedConfig(corpus=text.corpus, length=16, cache=text.cache),
            training,
        ),
    }
    for name, config in kinds.items():
        first = train(config, tmp_path / name)
        weights = start(first.path)
        assert weights.origin.source.endswith("checkpoints/step-00000002")
        again = train(
            RunConfig(task=type(config.task)(corpus=text.corpus, length=16, cache=text.cache), training=training),
            tmp_path / f"{name} again",
            start=weights,
        )
        assert (again.config.task.tokenizer, again.config.task.vocab_size) == (
            first.config.task.tokenizer,
            first.config.task.vocab_size,
        )
        before = evaluate(first.path, again.config.task)["bits_per_byte"]
        assert evaluations(again)[0] == pytest.approx(before, rel=1e-6)
    narrow = start(tmp_path / "text", attention="local(window=2)")
    assert train(RunConfig(task=text, training=training), tmp_path / "narrow", start=narrow).config.model.attention == (
        "local(window=2)",
    )
    with pytest.raises(ConfigError, match="was trained on masked, and its weights start a training on masked alone"):
        train(RunConfig(task=text, training=training), tmp_path / "no", start=start(tmp_path / "masked"))


def test_positions_that_the_weights_have_not(tmp_path, tokenizer, text):
    pretrained.export(LanguageModel(presets.build("gpt", **SHAPE)), tmp_path / "gpt", tokenizer=tokenizer)
    config = RunConfig(task=replace(text, length=60), training=replace(TRAINING, steps=1))
    with pytest.raises(ConfigError, match=r"task\.length=60, and .*gpt has 48 positions; .*--model\.max-length 60"):
        train(config, tmp_path / "run", start=start(tmp_path / "gpt"))
    assert not (tmp_path / "run").exists()
    assert train(config, tmp_path / "run", start=start(tmp_path / "gpt", max_length=60)).config.model.max_length == 60


REFUSED = {
    "shape": (
        lambda config: replace(config, model=ModelConfig(dim=32)),
        r"model\.dim: 16 in the weights, 32 asked for",
    ),
    "tokenizer": (lambda config: replace(config, task=replace(config.task, tokenizer="bpe")), "their own tokenizer"),
    "masked": (lambda config: RunConfig(task=MaskedConfig(corpus=config.task.corpus)), "hides tokens behind one more"),
    "recall": (lambda config: RunConfig(task=RecallConfig()), "cannot start a training on recall, which reads no text"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_weights_do_not_do(tmp_path, published, text, kind):
    change, message = REFUSED[kind]
    with pytest.raises(ConfigError, match=message):
        train(change(RunConfig(task=text, training=TRAINING)), tmp_path / "run", start=start(published))
    assert not (tmp_path / "run").exists()


def test_networks_that_continue_no_text(tmp_path, published, text, tokenizer):
    small = {"dim": 12, "heads": 2, "layers": 1, "vocab_size": 310, "max_length": 30}
    bert = MaskedLanguageModel(Encoder(presets.build("bert", **small)))
    for name, model in (("bert", bert), ("t5", EncoderDecoder(presets.build("t5", **small)))):
        pretrained.export(model, tmp_path / name, tokenizer=tokenizer)
        with pytest.raises(ConfigError, match=f"is a {type(model).__name__}, and the task text trains decoders"):
            train(RunConfig(task=text), tmp_path / "run", start=start(tmp_path / name))
    (published / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        train(RunConfig(task=text), tmp_path / "run", start=start(published))
    with pytest.raises(ConfigError, match=r"there are no weights in nowhere: give a run, a \.gguf file"):
        start("nowhere")


def test_a_converted_network_that_was_saved(tmp_path, published, text):
    """With its attention, which no folder for transformers can say."""
    converted = pretrained.load(published, attention="local(window=2)")
    pretrained.save(converted, tmp_path / "saved")
    before = evaluation.evaluate(converted, text, split="valid")["bits_per_byte"]
    weights = start(tmp_path / "saved")
    assert set(weights.origin.files) == {"network.json", "tokenizer.json", "model.safetensors"}
    training = replace(TRAINING, steps=1)
    run = train(RunConfig(task=text, training=training), tmp_path / "run", start=weights)
    assert run.config.model.attention == ("local(window=2)",)
    assert evaluations(run)[0] == pytest.approx(before, rel=1e-6)


def test_a_run_that_diverges_at_once_keeps_what_it_started_from(tmp_path, published, text):
    """The way out that is advised works; to remove its only checkpoint would not."""
    training = replace(TRAINING, learning_rate=1e30, clip=0.0, checkpoint_every=100, evaluate_every=100)
    with pytest.raises(NumericsError) as caught:
        train(RunConfig(task=text, training=training), tmp_path / "run", start=start(published))
    assert "go on from step-00000000" in str(caught.value)
    assert "remove" not in str(caught.value)
    assert list(evaluations(resume(tmp_path / "run", learning_rate=0.01))) == [0, 6]


def test_weights_that_are_no_numbers(tmp_path, published, text):
    loaded = pretrained.load(published)
    with torch.no_grad():
        loaded.decoder.norm.weight[0] = float("nan")  # type: ignore[union-attr]
    with pytest.raises(NumericsError, match="the loss is nan: the weights have diverged"):
        evaluation.evaluate(loaded, text)
    with torch.no_grad():
        loaded.decoder.norm.weight.fill_(1e5)  # type: ignore[union-attr]
    assert evaluation.evaluate(loaded, text)["perplexity"] is None


MEMORIES = {
    "closed": ("none", "memorizing(pairs=64, top=4, gate=-100)"),
    "searched": ("none", "memorizing(pairs=64, top=4, gate=-1)"),
    "recent": "recent(length=16)",
    "compressive": ("compressive(length=8, compressed=8, rate=2, function=convolution)", "none"),
}
SEGMENT = 8


@pytest.mark.parametrize("kind", MEMORIES)
def test_a_published_decoder_gets_a_memory(tmp_path, published, text, kind):
    """It begins as the network that reads so; where nothing passes the gate, as the network on every segment."""
    given = {"memory": MEMORIES[kind], "max_length": SEGMENT}
    run = train(RunConfig(task=text, training=TRAINING), tmp_path / "run", start=start(published, **given))
    found, segments = evaluations(run), replace(text, length=SEGMENT)
    before = evaluation.evaluate(pretrained.load(published, **given), text, split="valid")["bits_per_byte"]
    alone = evaluation.evaluate(pretrained.load(published), segments, split="valid")["bits_per_byte"]
    assert list(found) == [0, 3, 6]
    assert found[0] == pytest.approx(before, rel=1e-6)
    assert (found[0] == pytest.approx(alone, rel=1e-6)) is (kind == "closed")
    assert found[6] < found[0] - 0.5
    assert (run.config.model.memory, run.config.model.max_length) == (MEMORIES[kind], SEGMENT)
    assert evaluate(run.path)["bits_per_byte"] == pytest.approx(found[6], rel=1e-6)
    loaded = load(run.path)
    tokens = loaded.tokenizer.encode("12 is followed by 13, 14 is followed by 15")
    assert len(tokens) > SEGMENT
    wanted = loaded.model(torch.from_numpy(tokens)[None]).logits[0, -1].argmax()
    said = loaded.generate("12 is followed by 13, 14 is followed by 15", max_new_tokens=1, temperature=0)
    assert said == loaded.tokenizer.decode([int(wanted)])
    again = train(RunConfig(task=text, training=TRAINING), tmp_path / "again", start=start(run.path))
    assert evaluations(again)[0] == pytest.approx(found[6], rel=1e-6)
    assert again.config.model == run.config.model


def test_a_memory_without_a_second_segment_is_refused(tmp_path, published, text):
    with pytest.raises(ConfigError, match=r"would remember nothing: a segment has model\.max_length=48"):
        train(RunConfig(task=text, training=TRAINING), tmp_path / "run", start=start(published, memory="recent"))
    assert not (tmp_path / "run").exists()
