"""`regard capacity` in this process."""

import json

import pytest


def test_shows_the_best_sharpness_and_leaves_numbers(regard, tmp_path):
    words = ["--pairs", "4", "16", "--sharpness", "0.1", "8", "--trials", "3", "--threads", "1"]
    answer = regard("capacity", "softmax", "linear", *words, "--out", "here")
    assert answer.code == 0
    assert "4 pairs" in answer.out
    shown = next(line.split() for line in answer.out.splitlines() if line.strip().startswith("softmax"))
    assert shown[:6] == ["softmax", "1,024", "to", "4,096", "8", "1.000"]
    found = json.loads((tmp_path / "here" / "results.json").read_text())
    assert len(found["rows"]) == 2 * 2 * 2
    assert found["best"]["softmax"] == 8
    assert json.loads(regard("capacity", "linear", *words, "--json").out)["plan"]["pairs"] == [4, 16]


def test_exits_7_when_a_control_misses(regard, monkeypatch):
    monkeypatch.setattr("regard_lab.benchmark.capacity.CONTROLS", ("linear", "uniform"))
    answer = regard("capacity", "softmax", "--pairs", "16", "--sharpness", "8", "--trials", "2")
    assert answer.code == 7
    assert "CONTROL MISSED: linear finds 16 pairs" in answer.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["performer", "--pairs", "1"], "pairs must be at least 2, got 1"),
        (["performer", "--key-dim", "0"], "key_dim must be at least 1, got 0"),
        (["performer", "--threads", "0"], "threads must be at least 1, got 0"),
        (["performer", "--lengths", "8"], "--lengths"),
    ],
)
def test_bad_words(regard, words, message):
    answer = regard("capacity", *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
