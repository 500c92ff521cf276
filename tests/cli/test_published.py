"""Published weights on the command line, with their own attention and with another."""

import json
import math
import re
from pathlib import Path

import numpy
import pytest
import safetensors.torch
import torch

from regard.integrations import pretrained
from regard.models import Encoder, presets
from tests.cli.conftest import WORDS, letters


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


@pytest.fixture
def encoder(tmp_path) -> str:
    """A folder with a small encoder of 24 positions whose words are letters."""
    shape = {"dim": 16, "heads": 4, "layers": 1, "vocab_size": len(WORDS), "max_length": 24, "dropout": 0.0}
    pretrained.export(Encoder(presets.build("bert", **shape)), tmp_path / "encoder", tokenizer=letters())
    return str(tmp_path / "encoder")


def test_embed_writes_a_vector_for_every_text(regard, encoder):
    Path("one.txt").write_text("a b c\n\nd e\n")
    Path("rows.jsonl").write_text('{"text": "f g"}\n\n{"text": "h"}\n')
    given = ["embed", encoder, "one.txt", "rows.jsonl"]
    wanted = pretrained.load(encoder).embed(["a b c d e", "f g", "h"])
    answer = regard(*given, "--json", "--batch-size", 2)
    assert answer.code == 0, answer.err
    assert json.loads(answer.out) == {"model": encoder, "texts": 3, "dim": 16, "out": "vectors.safetensors"}
    with safetensors.safe_open("vectors.safetensors", "pt") as file:
        torch.testing.assert_close(file.get_tensor("vectors"), wanted)
        assert json.loads(file.metadata()["sources"]) == ["one.txt", "rows.jsonl, line 1", "rows.jsonl, line 3"]
    assert regard(*given, "--out", "v.npy", "--lines").code == 0
    lines = pretrained.load(encoder).embed(["a b c", "d e", "f g", "h"])
    numpy.testing.assert_allclose(numpy.load("v.npy"), lines.numpy(), rtol=1e-5, atol=1e-6)
    assert "3 vectors of 32 numbers: v.jsonl" in regard(*given, "--out", "v.jsonl", "--pooling", "cls", "max").out
    rows = [json.loads(line) for line in Path("v.jsonl").read_text().splitlines()]
    assert rows[1]["source"] == "rows.jsonl, line 1"
    joined = pretrained.load(encoder).embed(["h"], pooling=["cls", "max"])[0]
    assert rows[2]["vector"] == pytest.approx(joined.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["long.txt"], 6, "at most 24 tokens here .*give --truncate to cut them there:\n  long.txt, line 2 has 25$"),
        (["blank.jsonl"], 3, "blank.jsonl, line 2 holds no text"),
        (["rows.jsonl"], 3, "rows.jsonl, line 1: no field 'text'.*--field"),
        (["absent.txt"], 3, "cannot read absent.txt"),
        ([], 2, "there is no text to embed"),
        (["long.txt", "--out", "v.txt"], 2, "must end in .safetensors, .npy or .jsonl"),
        (["long.txt", "--out", "blank.npy"], 2, "blank.npy exists"),
        (["long.txt", "--prompt", "query"], 2, "has no prompt 'query': there are none"),
        (["long.txt", "--pooling", "first"], 2, "there is no pooling 'first'"),
    ],
)
def test_embed_says_what_is_wrong(regard, encoder, words, code, message):
    Path("long.txt").write_text("a\n" + "b " * 25)
    Path("blank.jsonl").write_text('{"text": "a"}\n{"text": " "}\n')
    Path("rows.jsonl").write_text('{"body": "a"}\n')
    Path("blank.npy").touch()
    answer = regard("embed", encoder, *words, "--lines")
    assert answer.code == code
    assert re.search(message, answer.err.rstrip(), re.DOTALL), answer.err
    assert not list(Path().glob("vectors*"))


def test_embed_cuts_long_texts_when_told(regard, encoder):
    Path("long.txt").write_text("b " * 30)
    assert regard("embed", encoder, "long.txt", "--truncate", "--out", "v.npy").code == 0
    wanted = pretrained.load(encoder).embed(["b " * 24])
    numpy.testing.assert_allclose(numpy.load("v.npy"), wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_evaluate_of_an_encoder_names_the_command_for_it(regard, encoder):
    answer = regard("evaluate", encoder)
    assert answer.code == 2
    assert "is a bert, which does not continue texts. regard embed makes vectors of texts." in answer.err


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


@pytest.mark.parametrize("words", [["--attention", "local"], ["--max-length", "40"]])
@pytest.mark.parametrize("verb", ["evaluate", "generate"])
def test_a_run_keeps_its_attention(regard, run, verb, words):
    answer = regard(verb, run, *(["a"] if verb == "generate" else []), *words)
    assert answer.code == 2
    assert f"{words[0]} is for published weights" in answer.err
