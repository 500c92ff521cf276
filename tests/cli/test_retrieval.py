"""`regard retrieval` in this process."""

import json

import pytest


def test_shows_accuracy_beside_bytes_and_leaves_a_page(regard, tmp_path, monkeypatch):
    monkeypatch.setattr("regard_lab.report._page.plotly.offline.get_plotlyjs", lambda: "")
    words = ["--pairs", "2", "--key-dim", "16", "--threads", "1", "--out", "r"]
    answer = regard("retrieval", "local(window=3)", *words, "--steps", "2")
    assert answer.code == 7  # nothing is learned in two steps
    assert "CONTROL MISSED: softmax, 2 pairs: at least 0.95" in answer.out
    found = json.loads((tmp_path / "r" / "results.json").read_text())
    assert [row["spec"] for row in found["rows"]] == ["softmax", "uniform", "local(window=3)"]
    assert found["plan"]["seeds"] == [0]
    assert "local(window=3)" in (tmp_path / "r" / "retrieval.html").read_text()


def test_exits_0_when_the_controls_are_reached(regard, monkeypatch):
    from regard_lab.benchmark import retrieval

    learned = retrieval.Trained(
        retrieval.LanguageModel(retrieval.RetrievalConfig().model("softmax", 0)), 1.0, 1.0, [0.0]
    )
    guessed = retrieval.Trained(learned.model, 0.25, 0.25, [1.0])
    monkeypatch.setattr(retrieval, "_trained", lambda config, spec, *rest: guessed if spec == "uniform" else learned)
    answer = regard("retrieval", "linear", "--trainings", "2", "--json")
    assert answer.code == 0
    assert {row["seed"] for row in json.loads(answer.out)["rows"]} == {0, 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["performer", "--steps", "0"], "steps must be at least 1, got 0"),
        (["performer", "--trainings", "0"], "seeds must not be empty"),
        (["performer", "--pairs", "17"], "num_pairs=17 is not possible"),
        (["performer", "--key-dim", "0"], "key_dim must be at least 1, got 0"),
        (["performer", "--threads", "0"], "threads must be at least 1, got 0"),
        (["performer", "--sharpness", "1"], "--sharpness"),
    ],
)
def test_bad_words(regard, words, message):
    answer = regard("retrieval", *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
