"""Tests are left out only while everything that they read is what it was when they passed."""

import json
import textwrap

import pytest

from tests import unchanged

FILES = {
    "src/regard/__init__.py": "",
    "src/regard/core.py": "from regard.room import table\n\ndef read():\n    return table.SIZE\n",
    "src/regard/room/__init__.py": "",
    "src/regard/room/table.py": "SIZE = 3\n",
    "src/regard/other/__init__.py": "",
    "src/regard/other/lazy.py": "def add(x):\n    return x + 1\n",
    "tests/test_one.py": """
        import sys
        from pathlib import Path
        import pytest
        sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
        HERE = Path(__file__).parent
        def load(place):
            scope, path = {}, HERE.parent / "src/regard" / place
            exec(compile(path.read_text(), path, "exec"), scope)
            return scope
        @pytest.mark.parametrize("name", ["plain", "adds", "reads"])
        def test_it(name):
            if name == "plain":
                assert 1
            elif name == "adds":
                assert load("other/lazy.py")["add"](1) == 2
            else:
                assert (HERE / "data.txt").read_text() == "3"
        def test_alone():
            assert not (HERE / "fails").exists()
    """,
    "tests/data.txt": "3",
}


@pytest.fixture
def stage(pytester, monkeypatch):
    """Run the tests of a small repository, and tell how many passed, failed and were left out."""
    for name, text in FILES.items():
        path = pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.setattr(unchanged, "ROOT", pytester.path)
    monkeypatch.setattr(unchanged, "RECORD", pytester.path / "tests" / "passed.json")

    def run(*arguments):
        unchanged._content.cache_clear()
        unchanged._imports.cache_clear()
        found = pytester.runpytest_inprocess("-p", "tests.unchanged", "-p", "no:cacheprovider", "tests", *arguments)
        counts = found.parseoutcomes()
        assert found.ret == bool(counts.get("failed"))
        return tuple(counts.get(kind, 0) for kind in ("passed", "failed", "deselected"))

    return run


def test_what_passed_is_left_out_until_something_that_it_read_changes(stage, pytester):
    assert stage() == (4, 0, 0)
    assert stage() == (0, 0, 4)
    (pytester.path / "src/regard/other/lazy.py").write_text("def add(x):\n    return 1 + x\n")
    assert stage() == (1, 0, 3)
    (pytester.path / "tests/data.txt").write_text("4")
    assert stage() == (0, 1, 3)
    assert stage() == (0, 1, 3), "a failure is no pass"


def test_what_is_imported_counts(stage, pytester):
    files = [str(pytester.path / "src/regard/core.py")]
    assert unchanged.places(files) == ["src/regard", "src/regard/room"]


def test_a_forged_record_runs(stage, pytester):
    stage()
    record = json.loads(unchanged.RECORD.read_text())
    for entry in record.values():
        entry["digest"] = "0" * len(entry["digest"])
    unchanged.RECORD.write_text(json.dumps(record))
    assert stage() == (4, 0, 0)


def test_all_can_be_asked_for_and_parts_are_not_recorded(stage, monkeypatch):
    assert stage("-k", "adds") == (1, 0, 3)
    assert not unchanged.RECORD.exists()
    stage()
    monkeypatch.setenv("REGARD_ALL", "1")
    assert stage() == (4, 0, 0)
