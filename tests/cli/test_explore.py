"""`regard explore` in this process."""

import json

import pytest


def test_a_run(regard, run, tmp_path):
    answer = regard("explore", "run", "12 is", "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert found["page"] == "attention.html"
    assert found["bytes"] == (tmp_path / "attention.html").stat().st_size
    (model,) = found["models"]
    assert (model["name"], model["tokens"]) == ("run", list("12 is"))
    assert [len(layer["heads"]) for layer in model["layers"]] == [2]
    again = regard("explore", "run", "-", "--beside", "run", "--out", "two.html", stdin=b"12 is")
    assert again.code == 0
    assert again.out.count("softmax") == 2
    assert "Every head, to look at: two.html" in again.out
    assert "layer 1 of 1: softmax" in again.err


def test_published_weights_beside_themselves_with_other_attention(regard, network):
    words = ["--beside", network, "--beside-attention", "linear", "--json"]
    answer = regard("explore", network, "a b c d", "--attention", "local(window=1)", *words)
    assert answer.code == 0, answer.err
    first, second = json.loads(answer.out)["models"]
    assert first["tokens"] == ["a", " b", " c", " d"]
    assert {layer["mechanism"] for layer in first["layers"]} == {"local(window=1)"}
    assert {layer["mechanism"] for layer in second["layers"]} == {"linear"}
    assert first["layers"][0]["heads"][0]["distance"] < second["layers"][0]["heads"][0]["distance"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", ""], 3, "the text has no token"),
        (["run", "a", "--attention", "local"], 2, "--attention is for published weights"),
        (["run", "a", "--beside-attention", "local"], 2, "--beside-attention is for the model of --beside"),
        (["nowhere", "a"], 2, "nowhere is not a run"),
        (["run", "a", "--out", "run/config.toml"], 2, "exists; choose another name"),
    ],
)
def test_bad_words(regard, run, words, code, message):
    answer = regard("explore", *words)
    assert (answer.code, answer.out) == (code, "")
    assert message in answer.err


def test_a_run_without_text(regard, recall_run):
    answer = regard("explore", recall_run, "a")
    assert (answer.code, answer.out) == (2, "")
    assert "was trained on recall without text" in answer.err
