"""Published weights on the command line, with their own attention and with another."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
from tokenizers import Tokenizer, models, pre_tokenizers

from regard import consent
from regard.integrations import pretrained
from regard.integrations._tokenizer import PretrainedTokenizer
from regard.models import LanguageModel, presets

WORDS = ["[unk]", *"abcdefghij"]


@pytest.fixture
def network(tmp_path) -> str:
    """A folder with a small decoder of 24 learned positions whose words are letters, and a text of them."""
    shape = {"dim": 16, "heads": 4, "layers": 2, "vocab_size": len(WORDS), "max_length": 24, "dropout": 0.0}
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, "[unk]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    model = LanguageModel(presets.build("gpt", **shape))
    pretrained.export(model, tmp_path / "letters", tokenizer=PretrainedTokenizer(tokenizer))
    (tmp_path / "text.txt").write_text("a b c d e f g h i j a c e g i b d f h j\n" * 5)
    return str(tmp_path / "letters")


def evaluated(regard, network: str, *words: str) -> dict[str, float]:
    answer = regard("evaluate", network, "--corpus", "text.txt", "--json", *words)
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_evaluate_with_other_attention(regard, network):
    dense = evaluated(regard, network)
    wide = evaluated(regard, network, "--attention", "local(window=24)")
    narrow = evaluated(regard, network, "--attention", "local(window=1)")
    assert wide["tokens"] == dense["tokens"]
    assert wide["perplexity"] == pytest.approx(dense["perplexity"], rel=1e-5)
    assert narrow["perplexity"] != pytest.approx(dense["perplexity"], rel=1e-3)


def test_a_key_that_is_not_applied_may_be_ignored(regard, network):
    path = Path(network) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "logit_gain": 2.0, "is_causal": False}))
    for verb, *words in (("generate", "a b", "--max-new-tokens", "2"), ("explore", "a b", "--out", "a.html")):
        answer = regard(verb, network, *words, "--ignore", "is_causal")
        assert answer.code == 4
        assert "logit_gain=2.0: regard does not apply this key; if it changes nothing, load with --ignore" in answer.err
        answer = regard(verb, network, *words, "--ignore", "is_causal", "logit_gain")
        assert answer.code == 0, answer.err


def test_evaluate_with_more_positions(regard, network):
    words = ["--attention", "longformer(window=8)", "--length", "60"]
    answer = regard("evaluate", network, "--corpus", "text.txt", *words)
    assert answer.code == 6
    assert "windows of 60 tokens are longer than the network's 24 positions" in answer.err
    tokens = evaluated(regard, network)["tokens"]
    assert evaluated(regard, network, *words, "--max-length", "60")["tokens"] == tokens


def test_weights_that_are_no_numbers_are_named(regard, network):
    file = Path(network) / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    safetensors.torch.save_file({name: x * math.nan for name, x in weights.items()}, file, {"format": "pt"})
    words = ["--corpus", "text.txt"], ["a b c", "--max-new-tokens", "2"]
    for verb, more in zip(("evaluate", "generate"), words, strict=True):
        answer = regard(verb, network, *more)
        assert answer.code == 5, answer.err
        assert network in answer.err


def test_generate_with_other_attention_and_more_positions(regard, network):
    words = ["a b c", "--max-new-tokens", "8", "--temperature", "0"]
    dense, wide = regard("generate", network, *words), regard("generate", network, *words, "--attention", "local")
    assert dense.code == wide.code == 0
    assert wide.out == dense.out
    words[2] = "40"
    longer = regard("generate", network, *words, "--attention", "local(window=4)", "--max-length", "50")
    assert (longer.code, len(longer.out.split())) == (0, 40)
    refused = regard("generate", network, *words, "--attention", "locl")
    assert refused.code == 2
    assert "unknown mechanism 'locl'" in refused.err


@pytest.fixture
def saved(network, tmp_path) -> str:
    """The same with linear attention, kept."""
    pretrained.save(pretrained.convert(pretrained.load(network), "linear"), tmp_path / "saved")
    return str(tmp_path / "saved")


def test_what_was_saved_is_evaluated_and_continues_texts(regard, network, saved):
    words = ["a b c", "--max-new-tokens", "20", "--seed", "3"]
    kept, made = regard("generate", saved, *words), regard("generate", network, *words, "--attention", "linear")
    assert (kept.code, kept.out) == (0, made.out)
    assert kept.out != regard("generate", network, *words).out
    assert evaluated(regard, saved) == evaluated(regard, network, "--attention", "linear")
    assert evaluated(regard, saved)["perplexity"] != evaluated(regard, network)["perplexity"]
    page = regard("explore", saved, "a b c", "--out", "page.html", "--json")
    assert json.loads(page.out)["models"][0]["layers"][0]["mechanism"] == "linear"
    refused = regard("generate", saved, "--chat")
    assert "has no chat template" in refused.err


def test_damage_of_what_was_saved_is_named(regard, saved, tmp_path):
    whole = (tmp_path / "saved" / "model.safetensors").read_bytes()
    (tmp_path / "saved" / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    answer = regard("generate", saved, "a")
    assert answer.code == 4
    assert "model.safetensors is damaged" in answer.err
    (tmp_path / "saved" / "network.json").unlink()
    answer = regard("evaluate", saved)
    assert answer.code == 4
    assert "network.json is missing" in answer.err


def test_what_was_saved_imports_what_it_names_with_trust_alone(regard, network, tmp_path, monkeypatch):
    (tmp_path / "mechanism_of_the_folder.py").write_text(
        "from regard.attention.dense.uniform import Uniform\n\n\nclass Mine(Uniform):\n    pass\n"
    )
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    spec = "mechanism_of_the_folder:Mine"
    loaded = pretrained.load(network)
    model = LanguageModel(replace(loaded.decoder.config, attention=(spec,)))
    pretrained.save(replace(loaded, model=model, config=model.config), tmp_path / "saved")
    commands = (["generate", "a", "--max-new-tokens", "2"], ["evaluate", "--corpus", "text.txt"], ["explore", "a b"])
    for verb, *words in commands:
        monkeypatch.setattr(consent, "_agreed", set())
        monkeypatch.delitem(sys.modules, "mechanism_of_the_folder", raising=False)
        answer = regard(verb, "saved", *words)
        assert (answer.code, answer.out) == (2, "")
        assert f"network.json names {spec}" in answer.err
        assert "mechanism_of_the_folder" not in sys.modules
        assert regard(verb, "saved", *words, "--trust").code == 0


@pytest.mark.parametrize("words", [["--attention", "local"], ["--max-length", "40"]])
@pytest.mark.parametrize("verb", ["evaluate", "generate"])
def test_a_run_keeps_its_attention(regard, run, verb, words):
    answer = regard(verb, run, *(["a"] if verb == "generate" else []), *words)
    assert answer.code == 2
    assert f"{words[0]} is for published weights" in answer.err
