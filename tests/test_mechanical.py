"""Mechanical mutants: every kind of change is made once, and a study tells killed from surviving."""

import ast
import datetime
from types import SimpleNamespace

import pytest

from tests.mutants import mechanical

SOURCE = '''
"""Module."""
TABLE = 3

class Thing:
    """A class."""

    def __init__(self, size: int = 7) -> None:
        """Keep 5."""
        if not 0 < size:
            raise ValueError(f"{size + 1} is wrong")
        self.size = size

    def attend(self, x, mask):
        """Attend."""
        if mask is None or self.size > 2:
            return x.amax(-1) * 0.5
        y: int = x @ x + 1
        return y if mask.any() else ~mask

    def reference(self, x):
        return x + 1
'''


def test_every_change_is_one_change_that_parses():
    found = list(mechanical.variants(SOURCE))
    assert mechanical.changes(SOURCE) == len(found)
    changes = {v.change for v in found}
    assert changes == {
        "not 0 < size  ->  0 < size",
        "0 < size  ->  0 <= size",
        "0  ->  1",
        "mask is None or self.size > 2  ->  mask is None and self.size > 2",
        "mask is None  ->  mask is not None",
        "self.size > 2  ->  self.size >= 2",
        "2  ->  3",
        "x.amax(-1) * 0.5  ->  x.amax(-1) / 0.5",
        "x.amax  ->  x.amin",
        "-1  ->  1",
        "1  ->  2",
        "0.5  ->  1.0",
        "x @ x + 1  ->  x @ x - 1",
        "y if mask.any() else ~mask  ->  ~mask if mask.any() else y",
        "~mask  ->  mask",
    }
    original = ast.unparse(ast.parse(SOURCE))
    for variant in found:
        lines = ast.unparse(ast.parse(variant.source)).splitlines()
        assert sum(a != b for a, b in zip(original.splitlines(), lines, strict=True)) == 1
        assert 8 < variant.line < 22


@pytest.mark.mutants
def test_the_suite_kills_most_mutants():
    outcomes = mechanical.study("uniform", limit=4, jobs=2)
    assert len(outcomes) == 4
    assert sum(outcome.killer is not None for outcome in outcomes) >= 3


def test_no_mutant_begins_after_the_time_is_up(monkeypatch):
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(mechanical, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(mechanical, "_judged", lambda name, module, variant, tests: mechanical.Outcome(variant, None))
    judged = mechanical.study("uniform", minutes=1)
    lines = [outcome.variant.line for outcome in judged]
    assert len(lines) == 3
    assert lines == sorted(lines)
    assert len(mechanical.study("uniform", limit=5)) == 5


def test_survivors_are_listed(capsys, monkeypatch):
    dead, alive = (mechanical.Variant(line, "1  ->  2", "") for line in (3, 5))
    found = [mechanical.Outcome(dead, "causality"), mechanical.Outcome(alive, None)]
    monkeypatch.setattr(mechanical, "study", lambda name, **options: found)
    assert mechanical.main(["uniform", "softmax"]) == 0
    out = capsys.readouterr().out
    assert "uniform: 1 of 2 mutants killed\n  survives, line 5: 1  ->  2\nsoftmax: 1 of 2" in out
    assert "line 3" not in out


@pytest.mark.mutants
def test_survivors_of_the_suite_face_the_tests(tmp_path):
    failing, passing = tmp_path / "test_failing.py", tmp_path / "test_passing.py"
    failing.write_text("def test_it():\n    assert False\n")
    passing.write_text("def test_it():\n    pass\n")
    source = mechanical.Variant(0, "nothing", mechanical.catalog.source("uniform"))
    module = "regard.attention.dense.uniform"
    assert mechanical._judged("uniform", module, source, str(failing)).killer == "tests"
    assert mechanical._judged("uniform", module, source, str(passing)).killer is None


@pytest.mark.mutants
def test_the_tests_see_a_mutant_that_the_suite_never_imports():
    """The import hook that checks types in tests would import the module from its file."""
    module = "regard.position.alibi"
    source = mechanical.source_of(module).read_text(encoding="utf-8")
    wrong = mechanical.Variant(0, "slopes", source.replace("-8 * t / power", "-8 / t / power"))
    assert wrong.source != source
    golden = "tests/position/test_positions.py -k slopes"
    assert mechanical._judged("uniform", module, wrong, golden).killer == "tests"
    assert mechanical._judged("uniform", module, mechanical.Variant(0, "nothing", source), golden).killer is None


def test_a_broken_source_is_killed():
    source = mechanical.catalog.source("uniform")
    module = "regard.attention.dense.uniform"
    broken = mechanical.Variant(0, "syntax", "def")
    assert mechanical._judged("uniform", module, broken).killer == "import: SyntaxError"
    wrong = source.replace("wide.cumsum(2)", "wide.cumsum(2) * 1.001")
    assert wrong != source
    assert mechanical._judged("uniform", module, mechanical.Variant(0, "scale", wrong)).killer is not None


def test_a_record_keeps_what_was_found(tmp_path):
    file = tmp_path / "survivors.csv"
    alive, other = (mechanical.Variant(line, f"{line}  ->  {line + 1}", "") for line in (12, 5))
    outcomes = [
        mechanical.Outcome(alive, None),
        mechanical.Outcome(other, None),
        mechanical.Outcome(other, "causality"),
    ]
    mechanical.record("regard.core.state", outcomes, file)
    mechanical.record("regard.core.bias", outcomes[2:], file)
    rows = mechanical.recorded(file)
    assert int(rows[0]["changes"]) > 3
    assert [(row["module"], row["judged"], row["killed"], row["line"], row["change"]) for row in rows] == [
        ("regard.core.bias", "1", "1", "", ""),
        ("regard.core.state", "3", "1", "5", "5  ->  6"),
        ("regard.core.state", "3", "1", "12", "12  ->  13"),
    ]
    file.write_text(file.read_text().replace("12  ->  13,", "12  ->  13,costs time alone"))
    mechanical.record("regard.core.state", outcomes[:1], file)
    assert [(row["module"], row["found"]) for row in mechanical.recorded(file)] == [
        ("regard.core.bias", ""),
        ("regard.core.state", "costs time alone"),
    ]


def test_every_survivor_of_the_record_was_looked_at():
    rows = mechanical.recorded()
    assert rows
    for row in rows:
        assert mechanical.source_of(row["module"]).exists(), row["module"]
        assert datetime.date.fromisoformat(row["date"])
        assert row["revision"]
        assert bool(row["change"]) is bool(row["found"]), f"{row['module']}, line {row['line']}: {row['change']}"


def test_a_module_that_cannot_be_replaced_is_refused():
    variant = mechanical.Variant(0, "nothing", mechanical.source_of("regard.catalog").read_text(encoding="utf-8"))
    with pytest.raises(ImportError, match=r"regard\.catalog is imported before it can be replaced"):
        mechanical._judged("uniform", "regard.catalog", variant)
    broken = mechanical.Variant(0, "syntax", "def")
    assert mechanical._judged("uniform", "regard.core.state", broken).killer == "import: SyntaxError"
