"""Texts and classes from the user's files: what they become, and what is wrong on which line."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from regard.core.errors import ConfigError, DataError
from regard_lab.tasks import ClassificationConfig, build_task, has_text
from regard_lab.tasks.labelled import read_labelled

GOOD, BAD = [f"a good day, {at}" for at in range(40)], [f"a bad\nday {at}" for at in range(40)]
ROWS = [row for pair in zip(((text, "good") for text in GOOD), ((text, "bad") for text in BAD)) for row in pair]  # noqa: B905


def as_json(path: Path, rows: Sequence[tuple[object, object]], names: tuple[str, str] = ("text", "label")) -> Path:
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows), encoding="utf-8")
    return path


def as_csv(path: Path, rows: Sequence[tuple[object, object]], names: tuple[str, str] = ("text", "label")) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    return path


def texts(task, split: str) -> dict[str, str]:
    examples = task.examples(split)
    return {examples.text(at): task.classes[examples.targets[at]] for at in range(len(examples))}


@pytest.mark.parametrize(("write", "name"), [(as_json, "a.jsonl"), (as_csv, "a.csv")])
def test_every_row_is_in_one_split_with_its_class(tmp_path: Path, write, name: str) -> None:
    config = ClassificationConfig(data=str(write(tmp_path / name, ROWS)), length=32)
    assert has_text(config)
    task = build_task(config)
    assert task.classes == ("bad", "good")
    splits = {split: texts(task, split) for split in ("train", "valid", "test")}
    assert [len(found) for found in splits.values()] == [64, 8, 8]
    assert {text: label for found in splits.values() for text, label in found.items()} == dict(ROWS)
    assert all(list(found.values()).count("good") == len(found) / 2 for found in splits.values())


def test_the_order_of_rows_and_the_kind_of_file_change_nothing(tmp_path: Path) -> None:
    one = build_task(ClassificationConfig(data=str(as_csv(tmp_path / "a.csv", ROWS)), length=32))
    two = build_task(ClassificationConfig(data=str(as_json(tmp_path / "a.jsonl", ROWS[::-1])), length=32))
    assert [texts(one, split) for split in ("train", "valid", "test")] == [
        texts(two, split) for split in ("train", "valid", "test")
    ]
    assert one.classes == two.classes


def test_equal_texts_stay_together_under_two_labels(tmp_path: Path) -> None:
    rows = [*ROWS, *((text, "good") for text in BAD[:20])]
    task = build_task(ClassificationConfig(data=str(as_csv(tmp_path / "a.csv", rows)), length=32))
    found = [set(texts(task, split)) for split in ("train", "valid", "test")]
    assert not found[0] & found[1] | found[0] & found[2] | found[1] & found[2]


def test_columns_have_the_names_that_they_have(tmp_path: Path) -> None:
    path = as_csv(tmp_path / "a.csv", ROWS, ("review", "stars"))
    task = build_task(ClassificationConfig(data=str(path), length=32, field="review", label_field="stars"))
    assert task.classes == ("bad", "good")
    with pytest.raises(DataError, match=r"a\.csv, line 1: no column 'text'; columns: 'review', 'stars'; .*--task\.fie"):
        build_task(ClassificationConfig(data=str(path)))
    with pytest.raises(DataError, match=r"no column 'label'; .*; choose one with --task\.label-field"):
        build_task(ClassificationConfig(data=str(path), field="review"))
    with pytest.raises(ConfigError, match="label_field='review' is not possible; it must be another column"):
        ClassificationConfig(data=str(path), field="review", label_field="review")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [([10, 9, -1], ("-1", "9", "10")), ([True, False], ("false", "true")), (["2", "10"], ("10", "2"))],
)
def test_labels_that_are_numbers_or_truths(tmp_path: Path, labels: list[object], classes: tuple[str, ...]) -> None:
    rows = [(f"{label} {at}", label) for label in labels for at in range(3)]
    found, named = read_labelled(as_json(tmp_path / "a.jsonl", rows), "text", "label")
    assert named == classes
    assert [each.label for each in found[:3]] == [str(labels[0]).lower()] * 3


def test_a_file_of_its_own_tests(tmp_path: Path) -> None:
    data = as_csv(tmp_path / "train.csv", ROWS)
    test = as_json(tmp_path / "test.jsonl", [("a new day", "good"), (GOOD[3], "good"), (GOOD[4], "bad")])
    task = build_task(ClassificationConfig(data=str(data), test=str(test), length=32))
    assert texts(task, "test") == {"a new day": "good", GOOD[3]: "good", GOOD[4]: "bad"}
    seen = set(texts(task, "train")) | set(texts(task, "valid"))
    assert seen == {text for text, _ in ROWS} - {GOOD[3], GOOD[4]}
    as_csv(tmp_path / "new.csv", [("a", "good"), ("a\nb", "bad"), ("c", "ugly")])
    message = r"new\.csv, line 5: label 'ugly' is none of the classes of the training texts: 'bad', 'good'"
    with pytest.raises(DataError, match=message):
        build_task(ClassificationConfig(data=str(data), test=str(tmp_path / "new.csv")))
    with pytest.raises(DataError, match=r"there is no data 'absent\.csv'"):
        build_task(ClassificationConfig(data=str(data), test="absent.csv"))
    as_csv(tmp_path / "same.csv", ROWS)
    with pytest.raises(DataError, match="split has no text of class bad, good; give texts that are not in the test"):
        build_task(ClassificationConfig(data=str(data), test=str(tmp_path / "same.csv")))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [("a", "x"), ("b", 1)],
            "line 2: label '1' is a whole number, and that of .* line 1 text: write all labels in",
        ),
        ([("a", 1), ("b", True)], "line 2: label 'true' is true or false, and that of .* line 1 a whole number"),
        ([("a", "x"), ("b", None)], "line 2: field 'label' holds nothing, which is no label"),
        ([("a", 1.5)], "line 1: field 'label' holds a float, which is no label"),
        ([("a", ["x"])], "line 1: field 'label' holds a list, which is no label"),
        ([("a", " ")], "line 1: label 'label' is empty"),
        ([("a", "x" * 257)], "line 1: label 'label' has 257 characters, and 256 are the most; if it is the text"),
        ([("", "x")], "line 1: field 'text' is empty: write a text, or remove the row"),
        ([("\n ", "x")], "line 1: field 'text' is empty"),
        ([(3, "x")], "line 1: field 'text' holds int, not text"),
        ([("a", "x"), ("b", "x")], "all texts are of one class, 'x'"),
        ([("a", "x"), ("b", " x")], "line 1: label 'x' and ' x' .*line 2.* differ by white space alone"),
        ([*(("ab"[at % 2], "x") for at in range(9)), ("b", "y")], "line 1: class 'x' has 2 different text"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, rows: list[tuple[object, object]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_labelled(as_json(tmp_path / "a.jsonl", rows), "text", "label")


@pytest.mark.parametrize("data", ["song_ci", "shapes", "pictures.npz"])
@pytest.mark.parametrize("option", ["field", "label_field", "test"])
def test_columns_are_for_files_with_columns(data: str, option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}='x.csv' is not possible; it must be left out: it is for data in"):
        ClassificationConfig(data=data, **{option: "x.csv"})
