"""The tables of recorded comparisons, and the records that they come from."""

import json
import sys
from importlib import import_module
from pathlib import Path

import pytest

from regard.cli.main import main
from regard_lab.benchmark.advice import LEAST_SEEDS
from regard_lab.benchmark.config import FORMAT
from regard_lab.benchmark.language import Words
from regard_lab.report.summary import notes

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def choice():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        yield import_module("choice")
    del sys.modules["choice"]


def test_the_records_are_of_three_corpora_and_of_today(choice):
    found = choice.records()
    assert sorted(path.stem for path in choice.RECORDED.glob("*.json")) == sorted(found)
    assert {name: one["config"]["text"]["corpus"] for name, one in found.items()} == {name: name for name in found}
    alike = []
    for name, one in found.items():
        assert one["format"] == FORMAT
        assert one["config"]["seeds"] >= LEAST_SEEDS
        assert f"--text.corpus={name}" in one["reproduce"] or name == "state_of_the_union"
        assert "/" not in one["config"]["text"]["corpus"]
        alike.append({key: value for key, value in one["config"].items() if key != "text"})
    assert alike[0] == alike[1] == alike[2]


def test_a_record_whose_number_was_changed_is_refused(choice, tmp_path, monkeypatch):
    for path in choice.RECORDED.glob("*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        document["recommendation"]["spec"] = "uniform"
        (tmp_path / path.name).write_text(json.dumps(document))
    monkeypatch.setattr(choice, "RECORDED", tmp_path)
    with pytest.raises(ValueError, match="checksum"):
        choice.table("en")


@pytest.mark.parametrize(("language", "file"), [("en", "docs/comparing.md"), ("zh", "docs/zh/choice.md")])
def test_every_cell_says_what_was_measured(choice, language, file):
    """Every cell agrees with its record: winners in bold, no figure from an unreliable timing."""
    text = (ROOT / file).read_text(encoding="utf-8")
    inside = text.partition("<!-- choice: ")[2].partition("<!-- end of choice -->")[0]
    head, _, *rows = [line for line in inside.splitlines() if line.startswith("|")]
    found = list(choice.records().items())
    assert [f"`{name}`" in cell for (name, _), cell in zip(found, head.split("|")[2:], strict=False)] == [True] * 3
    needs = [one["need"] for one in found[0][1]["advice"]]
    assert len(rows) == len(needs) == 5
    say = Words(language)
    for need, row in zip(needs, rows, strict=True):
        for (_, record), cell in zip(found, row.split("|")[2:-1], strict=True):
            one = next(one for one in record["advice"] if one["need"] == need)
            assert (say("no recommendation yet") in cell) == (one["status"] == "open")
            assert all(f"`{spec}`" in cell for spec in one["specs"])
            assert ("**" in cell) == (one["status"] == "winner")
            doubtful = bool(notes(record))
            assert not (doubtful and need in ("length", "speed")) or one["status"] == "open"


def test_a_record_is_shown_by_the_command(choice, tmp_path):
    path = choice.RECORDED / "song_ci.json"
    assert main(["report", str(path), "--language", "zh", "--out", str(tmp_path / "page.html")]) == 0
    assert "该用哪一种注意力" in (tmp_path / "page.html").read_text(encoding="utf-8")
