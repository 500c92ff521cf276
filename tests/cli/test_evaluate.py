"""evaluate: data that changed since the training, and other text read by options of its own."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from regard.core.errors import CheckpointError
from regard_lab.training import evaluate, load


def test_data_that_changed_since_the_training(regard, run, text, tmp_path):
    """What it was trained on may be in the split now."""
    corpus, config = tmp_path / "numbers.txt", run / "config.toml"
    shutil.copy(text, corpus)
    words = ["--steps", "1", "--model.dim", "16", "--model.layers", "1", "--model.heads", "2", "--task.length", "32"]
    words += ["--task.corpus", str(corpus), "--task.cache", "cache", "--batch-size", "2", "--threads", "1"]
    assert regard("train", *words, "--out", "mine").code == 0
    assert regard("evaluate", "mine").code == 0
    corpus.write_text(corpus.read_text() * 2)
    answer = regard("evaluate", "mine")
    assert (answer.code, answer.out) == (4, "")
    assert "mine was trained on other data than its task gives now" in answer.err
    with pytest.raises(CheckpointError, match="put the data back"):
        evaluate("mine", split="test")
    assert regard("evaluate", "mine", "--corpus", str(corpus)).code == 0
    loaded = load("mine")
    assert evaluate(loaded, replace(loaded.config.task))["split"] == "valid"
    assert config.exists()


@pytest.fixture
def rows(tmp_path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"body": f"{at} is followed by {at + 1}, and {at + 2} comes later"}) for at in range(40)]
    path.write_text("\n".join(lines))
    return path


def test_messages_name_flags_that_evaluate_has(regard, run, rows):
    """Every flag that a message advises is taken."""
    taken = set(re.findall(r"--[a-z-]+", regard("evaluate", "--help").out))
    (rows.parent / "one.jsonl").write_text('{"text": "a"}\n')
    (rows.parent / "lines.txt").write_text("a line of a text\n" * 120)
    (rows.parent / "short.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n{"text": "c"}\n')
    for name, words, advised in (
        ("rows.jsonl", [], "--field"),
        ("one.jsonl", [], "--separator"),
        ("short.jsonl", [], "--length"),
        ("lines.txt", ["--length", "500"], "--holdout"),
    ):
        answer = regard("evaluate", run, "--corpus", name, *words)
        assert answer.code in (3, 6), answer.err
        flags = set(re.findall(r"--[a-z][a-z.-]+", answer.err))
        assert advised in flags
        assert flags <= taken, answer.err
    assert regard("evaluate", run, "--corpus", "rows.jsonl", "--field", "body", "--holdout", "0.2").code == 0


def test_what_a_run_says_of_its_own_corpus(regard, tiny, rows):
    """Its column is that of another file of rows, and of no other file."""
    words = [*tiny, "--task.corpus", rows.name, "--task.field", "body", "--task.cache", "cache", "--steps", "1"]
    assert regard("train", *words, "--out", "mine").code == 0
    shutil.copy(rows, "other.jsonl")
    Path("other.txt").write_text("something else altogether\n" * 200)
    assert regard("evaluate", "mine", "--corpus", "other.jsonl").code == 0
    assert regard("evaluate", "mine", "--corpus", "other.txt").code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--field", "body"], "--field goes with --corpus"),
        (["--holdout", "0.2", "--length", "9"], "--length, --holdout goes with --corpus"),
        (["--corpus", "rows.jsonl", "--label-field", "kind"], "was trained on text, which takes no --label-field"),
    ],
)
def test_options_without_use(regard, run, rows, words, message):
    answer = regard("evaluate", run, *words)
    assert answer.code == 2
    assert message in answer.err


def test_classes_of_another_file_with_other_columns(regard, tmp_path):
    for name, columns in (("mine", ("text", "label")), ("newer", ("body", "kind"))):
        rows = [",".join(columns)]
        rows += [f"{word} number {at} of {name},{word}" for at in range(12) for word in ("good", "bad")]
        (tmp_path / f"{name}.csv").write_text("\n".join(rows) + "\n")
    words = ["--task", "classification", "--task.data", "mine.csv", "--task.length", "32", "--model.dim", "16"]
    words += ["--model.layers", "1", "--model.heads", "2", "--steps", "1", "--threads", "1", "--task.holdout", "0.2"]
    assert regard("train", *words, "--out", "run").code == 0
    answer = regard("evaluate", "run", "--corpus", "newer.csv")
    assert answer.code == 3
    assert "choose one with --field" in answer.err
    answer = regard("evaluate", "run", "--corpus", "newer.csv", "--field", "body")
    assert answer.code == 3
    assert "choose one with --label-field" in answer.err
    both = ["--field", "body", "--label-field", "kind"]
    assert regard("evaluate", "run", "--corpus", "newer.csv", *both).code == 0
    answer = regard("evaluate", "run", "--corpus", "mine.csv")
    assert answer.code == 3
    assert "give texts that are not in the test file" in answer.err
    assert "--task" not in answer.err


def test_a_continuation_that_fails_leaves_the_configuration(regard, tiny, text, tmp_path):
    """Until a checkpoint was saved with it; then it is what the run was trained with."""
    words = [*tiny, "--task.corpus", text, "--task.cache", text.parent / "cache", "--steps", "2", "--clip", "0"]
    assert regard("train", *words, "--out", "r").code == 0
    before = {name: (tmp_path / "r" / name).read_bytes() for name in ("config.toml", "manifest.json")}
    again = ["train", "--resume", "r", "--steps", "9", "--learning-rate", "1e30"]
    answer = regard(*again)
    assert answer.code == 5, answer.err
    assert {name: (tmp_path / "r" / name).read_bytes() for name in before} == before
    assert regard("train", "--resume", "r").code == 0
    assert regard("train", "--resume", "r", "--steps", "3").code == 0
    assert "steps = 3\n" in (tmp_path / "r/config.toml").read_text()


@pytest.mark.parametrize("verb", ["evaluate", "generate"])
def test_what_is_neither_a_run_nor_weights_is_called_so(regard, verb):
    answer = regard(verb, "nowhere", *(["text"] if verb == "generate" else []), "--max-length", "9")
    assert answer.code == 2
    assert "nowhere is not a run" in answer.err
