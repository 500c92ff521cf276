"""Tests are left out only while everything that they read is what it was when they passed."""

import json
import textwrap

import pytest

from tests import unchanged

FILES = {
    "src/regard/__init__.py": "",
    "src/regard/protocol.py": "from regard.room import table\n\ndef read():\n    return table.SIZE\n",
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
    "tests/conftest.py": "def late():\n    from tests import helper\n",
    "tests/helper.py": "",
    "tests/script.py": "",
    "evidence/kills.py": "",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-p tests.unchanged --import-mode=importlib'\n",
}


@pytest.fixture
def stage(pytester, monkeypatch):
    """Run the tests of a small repository, and tell how many passed, failed and were left out."""
    for name, text in FILES.items():
        path = pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("REGARD_RECORD", "1")
    monkeypatch.setattr(unchanged, "ROOT", pytester.path)
    monkeypatch.setattr(unchanged, "RECORD", pytester.path / "tests" / "passed.json")

    def run(*arguments):
        unchanged._imports.cache_clear()
        found = pytester.runpytest_inprocess("tests", *arguments)
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
    stage()
    files = [str(pytester.path / "src/regard/protocol.py")]
    assert unchanged.places(files) == ["src/regard", "src/regard/room"]
    (pytester.path / "src/regard/protocol.py").write_text(
        "if TYPE_CHECKING:\n    import regard.other\ndef late():\n    from regard.room import table\n"
    )
    unchanged._imports.cache_clear()
    assert unchanged.places(files) == ["src/regard", "src/regard/room"]


def test_a_forged_record_runs(stage, pytester):
    stage()
    record = json.loads(unchanged.RECORD.read_text())
    unchanged.RECORD.write_text(json.dumps({f"{at:024}": found for at, found in enumerate(record.values())}))
    assert stage() == (4, 0, 0)


@pytest.mark.parametrize("chosen", [("-k", "adds"), ("--deselect", "tests/test_one.py::test_it[adds]"), ("--lf",)])
def test_parts_are_not_recorded(stage, pytester, chosen):
    if "--lf" in chosen:
        (pytester.path / "tests/fails").touch()
        stage("-k", "alone")
        (pytester.path / "tests/fails").unlink()
    stage(*chosen)
    assert not unchanged.RECORD.exists()


def test_all_can_be_asked_for(stage, monkeypatch):
    stage()
    monkeypatch.setenv("REGARD_ALL", "1")
    assert stage() == (4, 0, 0)


def test_nothing_is_recorded_unasked(stage, monkeypatch):
    monkeypatch.delenv("REGARD_RECORD")
    assert stage() == (4, 0, 0)
    assert not unchanged.RECORD.exists()


def test_every_choice_by_marks_has_a_record_of_its_own(stage, pytester):
    path = pytester.path / "tests/test_one.py"
    path.write_text(path.read_text().replace("def test_alone", "@pytest.mark.skipif(False, reason='')\ndef test_alone"))
    assert stage("-m", "skipif") == (1, 0, 3)
    assert stage() == (4, 0, 0)
    assert stage("-m", "skipif") == (0, 0, 4)


RUN = "subprocess.run([sys.executable, HERE / 'script.py'], check=True)"
TWO = "@pytest.mark.parametrize('name', 'ab')"
CHANGES = {
    "a conftest above": ("tests/conftest.py", "def test_it(): pass"),
    "what a conftest imports": ("tests/helper.py", "def test_it(): pass"),
    "a new conftest": ("tests/below/conftest.py", "def test_it(): pass"),
    "settings of the project": ("pyproject.toml", "def test_it(): pass"),
    "read when collected": ("tests/data.txt", "TEXT = (HERE / 'data.txt').read_text()\ndef test_it(): assert TEXT"),
    "listed when collected": ("tests/new.txt", "FILES = list(HERE.glob('*.txt'))\ndef test_it(): assert FILES"),
    "a script": ("tests/script.py", f"def test_it(): {RUN}"),
    "what a script runs": ("src/regard/room/table.py", f"def test_it(): {RUN}"),
    "a child": ("src/regard/room/table.py", "def test_it():\n    if not os.fork(): os._exit(0)"),
    "imported inside a function": ("tests/helper.py", "def test_it():\n    if not HERE: from tests import helper"),
    "the package of what is imported": (
        "src/regard/__init__.py",
        "def test_it():\n    if not HERE: import regard.room.table",
    ),
    "kept by a function": (
        "tests/data.txt",
        f"@functools.cache\ndef text(): return (HERE / 'data.txt').read_text()\n{TWO}\ndef test_it(name): text()",
    ),
    "kept by a fixture": (
        "tests/data.txt",
        "@pytest.fixture(scope='module')\ndef text(): return (HERE / 'data.txt').read_text()\n"
        f"{TWO}\ndef test_it(name, text): pass",
    ),
    "beside the library": ("evidence/kills.py", "def test_it(): open(HERE.parent / 'evidence/kills.py')"),
}


@pytest.fixture
def only(stage, pytester):
    """Run tests of this text, and tell how many passed and were left out."""
    (pytester.path / "tests/test_one.py").unlink()
    header = "import functools, os, pytest, subprocess, sys\nfrom pathlib import Path\nHERE = Path(__file__).parent\n"

    def run(text):
        (pytester.path / "tests/test_two.py").write_text(header + text)
        passed, failed, left_out = stage()
        assert not failed
        return passed, left_out

    return run


@pytest.mark.parametrize(("changed", "text"), CHANGES.values(), ids=CHANGES)
def test_a_change_of_all_that_a_test_depends_on_counts(only, pytester, changed, text):
    count, _ = only(text)
    assert count == 1 + ("'ab'" in text)
    assert only(text) == (0, count)
    path = pytester.path / changed
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{path.read_text() if path.exists() else ''}\n")
    assert only(text) == (count, 0)


def test_the_machine_counts(only, monkeypatch):
    text = "def test_it(): pass"
    assert only(text) == (1, 0)
    assert only(text) == (0, 1)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "other")
    assert only(text) == (1, 0)
    monkeypatch.setattr("numpy.__version__", "0")
    assert only(text) == (1, 0)
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    assert only(text) == (1, 0)


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("def test_it(): (HERE / 'data.txt').write_text((HERE / 'data.txt').read_text() + '3')", 1),
        ("def test_it(): pytest.skip('not here')", 0),
    ],
    ids=["what was edited meanwhile", "what was skipped"],
)
def test_no_pass_is(only, text, passed):
    assert only(text) == (passed, 0)
    assert only(text) == (passed, 0)
