"""A user's own files: classes of texts, corpora of every kind, and toy images where there are none."""

import csv
import json
from pathlib import Path

import pytest

SHORT = ["--model.dim", "16", "--model.layers", "1", "--model.heads", "2", "--batch-size", "4", "--warmup", "1"]
SHORT += ["--threads", "1", "--steps", "2", "--evaluate-examples", "4", "--out", "run"]


def written(path: Path, rows: list[tuple[str, str]], header: tuple[str, str] = ("text", "label")) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


ROWS = [(f"{at} is {'even' if at % 2 == 0 else 'odd'}, they say", "ab"[at % 2]) for at in range(60)]


def test_classes_of_a_file_are_trained_evaluated_and_told(regard, tmp_path):
    written(tmp_path / "mine.csv", ROWS, ("body", "kind"))
    words = ["--task.data", "mine.csv", "--task.field", "body", "--task.label-field", "kind", "--task.length", "32"]
    answer = regard("train", "--task", "classification", *words, *SHORT)
    assert answer.code == 0, answer.err
    assert "Try it: regard generate run 'a text'" in answer.out
    config = (tmp_path / "run/config.toml").read_text()
    assert f'data = "{tmp_path}/mine.csv"' in config
    assert 'label_field = "kind"' in config
    told = regard("generate", "run", "3 is odd, they say").out.splitlines()
    assert {line.split("\t")[1] for line in told} == {"a", "b"}
    pytest.importorskip("sklearn")
    assert regard("evaluate", "run").code == 0
    written(tmp_path / "new.csv", [("a new one", "a"), ("another", "b"), ("and more", "a")], ("body", "kind"))
    found = json.loads(regard("evaluate", "run", "--corpus", "new.csv", "--json").out)
    assert (found["split"], found["tokens"]) == ("test", 3)
    written(tmp_path / "new.csv", [("a new one", "a"), ("another", "c")], ("body", "kind"))
    answer = regard("evaluate", "run", "--corpus", "new.csv")
    assert (answer.code, answer.out) == (3, "")
    assert "new.csv, line 3: label 'c' is none of the classes of the training texts: 'a', 'b'" in answer.err
    answer = regard("evaluate", "run", "--corpus", "new.csv", "--split", "valid")
    assert answer.code == 2
    assert "new.csv is read whole, as the test; leave --split valid out" in answer.err
    assert regard("train", "--resume", "run", "--steps", "3").code == 0


def test_a_file_whose_classes_became_others_is_noticed(regard, tmp_path):
    """As many of them as before would pass for the same ones in another order."""
    path = written(tmp_path / "mine.csv", ROWS)
    assert regard("train", "--task", "classification", "--task.data", "mine.csv", *SHORT).code == 0
    path.write_text(path.read_text().replace(",a\n", ",c\n").replace(",a\r", ",c\r"))
    answer = regard("evaluate", "run")
    assert (answer.code, answer.out) == (2, "")
    assert "the task has the classes b, c, and the model was trained on a, b" in answer.err


def test_a_folder_of_every_kind_of_text(regard, tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("a.txt", "b.md", "c.py"):
        (tmp_path / "mine" / name).write_text(f"# the text of {name}\n" * 20)
    written(tmp_path / "mine" / "d.csv", [(f"row {at} " * 20, "x") for at in range(5)])
    (tmp_path / "mine" / ".e.txt").write_text("hidden")
    words = ["--task.corpus", "mine", "--task.length", "16", "--task.cache", "cache"]
    answer = regard("train", *words, *SHORT)
    assert answer.code == 0, answer.err
    found = json.loads(regard("evaluate", "run", "--split", "train", "--json").out)
    assert found["bits_per_byte"] > 0
    answer = regard("evaluate", "run", "--corpus", "mine/b.md")
    assert answer.code == 0, answer.err
