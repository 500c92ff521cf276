"""`regard train --from`: weights that others published, or a run's, on text of one's own."""

import json
from pathlib import Path

import pytest

from regard.integrations import pretrained
from regard.models import LanguageModel, presets
from regard_lab.training import load
from tests.cli.conftest import WORDS

DATA = ["--task.corpus", "text.txt", "--task.length", "12", "--task.cache", "cache"]
SHORT = [*DATA, "--steps", "2", "--batch-size", "2", "--warmup", "1", "--threads", "1"]


def said(path: Path, kind: str) -> list[dict]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


@pytest.mark.parametrize("attention", [[], ["--model.attention", "local(window=2)", "--model.dropout", "0.1"]])
def test_from_published_weights(regard, network, tmp_path, attention):
    answer = regard("train", "--from", network, *SHORT, *attention, "--out", "tuned")
    assert answer.code == 0, answer.err
    words = [part.replace("model.", "") for part in attention[:2]]
    base = regard("evaluate", network, "--corpus", "text.txt", "--length", "12", "--split", "valid", "--json", *words)
    before = json.loads(base.out)["bits_per_byte"]
    first, last = said(tmp_path / "tuned", "evaluate")
    assert (first["step"], last["step"]) == (0, 2)
    assert first["bits_per_byte"] == pytest.approx(before, rel=1e-6)
    after = regard("evaluate", "tuned", "--json")
    assert json.loads(after.out)["bits_per_byte"] == pytest.approx(last["bits_per_byte"], rel=1e-6)
    config = load("tuned").config.model
    assert config.attention == ("local(window=2)" if attention else "softmax",)
    assert config.dropout == (0.1 if attention else 0.0)
    assert regard("generate", "tuned", "a b c", "--max-new-tokens", "4").code == 0
    assert regard("train", "--resume", "tuned", "--steps", "3").code == 0
    again = regard("train", "--from", "tuned", *SHORT, "--out", "further")
    assert again.code == 0, again.err
    assert said(tmp_path / "further", "evaluate")[0]["step"] == 0


REFUSED = {
    "--model.dim 32": (2, "so model.dim cannot be another"),
    "--preset gpt": (2, "--preset gpt is a shape for new weights, and --from has its own"),
    "--task recall": (2, "letters cannot start a training on recall, which reads no text"),
    "--model.attention linformer": (2, "linformer does not support causal=True"),
    "--config shape.toml": (2, "so model.layers cannot be another"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_said_beside_weights(regard, network, tmp_path, words):
    (tmp_path / "shape.toml").write_text("[model]\nlayers = 3\n")
    code, message = REFUSED[words]
    flags = words.split()
    data = ["--steps", "2"] if flags[0] == "--task" else SHORT
    answer = regard("train", "--from", network, *data, *flags, "--out", "tuned")
    assert (answer.code, message in answer.err) == (code, True), answer.err
    assert not (tmp_path / "tuned").exists()


@pytest.fixture
def deep(tmp_path, network) -> str:
    """A folder with another decoder of the same letters: three layers, rotary positions."""
    del network
    words = {"dim": 16, "heads": 4, "layers": 3, "vocab_size": len(WORDS), "max_length": 24, "dropout": 0.0}
    letters = pretrained.load(tmp_path / "letters")
    model = LanguageModel(presets.build("llama", **words))
    pretrained.export(model, tmp_path / "deep", tokenizer=letters.tokenizer)
    return "deep"


@pytest.mark.parametrize("file", [False, True])
def test_attention_for_every_layer_of_a_network_of_any_depth(regard, deep, tmp_path, file):
    """What is said fits the network, however many layers a new one would have."""
    specs = ["softmax", "local(window=3)", "local(window=2)"]
    (tmp_path / "layers.toml").write_text(f"[model]\nattention = {json.dumps(specs)}\n")
    words = ["--config", "layers.toml"] if file else ["--model.attention", *specs]
    answer = regard("train", "--from", deep, *SHORT, *words, "--out", "tuned")
    assert answer.code == 0, answer.err
    assert load("tuned").config.model.attention == tuple(specs)
    words = ["--model.attention", "softmax", "softmax"]
    answer = regard("train", "--from", deep, *SHORT, *words, "--out", "other")
    assert answer.code == 2
    assert "one for each of the 3 layers" in answer.err


MISFITS = {
    "--model.memory none:3 recent": "one for each of the 3 layers, got 4",
    "--model.memory recnt": "memory: unknown memory 'recnt': did you mean 'recent'",
    "--model.memory recent": "memory='recent' would remember nothing: a segment has model.max_length=24",
}


@pytest.mark.parametrize("words", MISFITS)
def test_memories_that_do_not_fit(regard, deep, words):
    answer = regard("train", "--from", deep, *SHORT, *words.split(), "--out", "tuned")
    assert (answer.code, MISFITS[words] in answer.err) == (2, True), answer.err
    assert not Path("tuned").exists()


def test_weights_that_are_not_there(regard, network, run):
    answer = regard("train", "--from", "lettres", *SHORT)
    assert answer.code == 2
    assert (
        "there are no weights in lettres: give a run, a .gguf file, a Hugging Face folder, or package:NAME"
        in answer.err
    )
    answer = regard("train", "--resume", run, "--from", network)
    assert answer.code == 2
    assert "--resume continues a run with its own configuration, so --from would change nothing" in answer.err
    assert not Path("runs").exists()
