"""A pytest plugin that leaves out the tests of a stage for which nothing has changed since they last passed.

    pytest -p tests.unchanged tests/claims -m study                   # runs what changed
    REGARD_RECORD=1 pytest -p tests.unchanged tests/claims -m study   # records what passed as well, which is slower
    REGARD_ALL=1 pytest -p tests.unchanged tests/claims -m study      # runs everything

Tests of one file, one parameter `name` and one `-m` are a group. While a group runs to be recorded, the plugin notes
every file of the repository whose functions are called or that is opened; `tests/passed.json` records the folders of
these files, and of what they import or read when they are imported, with a digest of their content, of the settings of
the project, and of the machine. A group is left out while its digest is the recorded one.
"""

import ast
import functools
import hashlib
import itertools
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests" / "passed.json"
FOLDERS = ("src", "tests", "evidence", "docs", "examples")
ALWAYS = (
    "pyproject.toml",
    "tests/unchanged.py",
    *(f"tests/external/requirements{end}.txt" for end in ("", "-complete")),
)
"""files on which every group depends, beside every `conftest.py`"""
SETTINGS = (
    "OMP_NUM_THREADS",
    "ATEN_CPU_CAPABILITY",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "TRITON_INTERPRET",
)
"""environment variables on which every group depends"""
EVERYTHING = "*"
STARTED: dict[str, bytes] = {}
"""`contents` when the session began"""
SEEN: set[str] = set()
"""files that were read, and folders that were listed, since it was last cleared"""
IMPORTING: defaultdict[str, set[str]] = defaultdict(set)
"""those of a module while it was imported"""
SETTING_UP: defaultdict[str, set[str]] = defaultdict(set)
"""those of a fixture, which several tests may share"""


@contextmanager
def reading() -> Iterator[set[str]]:
    """Collect what is read inside, for results that are kept and used by several tests."""
    before = set(SEEN)
    SEEN.clear()
    yield SEEN
    SEEN.update(before)


def _called(frame: Any, event: str, _: object) -> None:
    if event == "call":
        SEEN.add(frame.f_code.co_filename)


def _audited(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir"):
        name = str(arguments[0])
    elif event in ("os.fork", "socket.connect") or (
        event == "subprocess.Popen" and sys.executable in str(arguments[1])
    ):
        name = f"{ROOT}/{EVERYTHING}"  # what another process reads is not seen
    else:
        return
    frame = sys._getframe().f_back
    if event != "open" and frame and "importlib" in frame.f_code.co_filename:
        return  # it looks for a module
    SEEN.add(name)
    while frame and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame:
        IMPORTING[frame.f_code.co_filename].add(name)


def _tracked(files: Iterable[str]) -> set[str]:
    return {os.path.abspath(file).removeprefix(f"{ROOT}/") for file in files} & STARTED.keys()


@functools.cache
def _imports(name: str) -> frozenset[str]:
    """Files of the repository that a module names in its import statements, with the packages above them."""
    found: set[str] = set()
    package = name.split("/")[:-1]
    tree = ast.parse((ROOT / name).read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) + 1 - node.level], node.module or ""] if node.level else [node.module or ""]
            module = ".".join(part for part in base if part).removeprefix("src.")
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    paths = {path for each in found for path in itertools.accumulate(each.split("."), "{}/{}".format)}
    files = {f"{root}{path}{end}" for path in paths for root in ("", "src/") for end in (".py", "/__init__.py")}
    return frozenset(files & STARTED.keys())


def places(files: Iterable[str]) -> list[str]:
    """These files and all that they import; below `src` their folders."""
    todo, done = _tracked(files), set[str]()
    while todo:
        name = todo.pop()
        done.add(name)
        if name.endswith(".py"):
            todo |= (_imports(name) | _tracked(IMPORTING[f"{ROOT}/{name}"])) - done
    coarse = {name for name in done if name.startswith("src/")}
    folders = {name if (ROOT / name).is_dir() else os.path.dirname(name) for name in coarse}
    return [EVERYTHING] if EVERYTHING in done else sorted(done - coarse | folders)


def contents() -> dict[str, bytes]:
    """What every file holds, what every folder holds, and everything."""
    found: defaultdict[str, bytes] = defaultdict(bytes)
    paths = [*ROOT.glob("[!.]*.*"), *(path for top in FOLDERS for path in (ROOT / top).rglob("*"))]
    for path in sorted(paths):
        if path.is_file() and path != RECORD and {"__pycache__", "_build"}.isdisjoint(path.parts):
            name = str(path.relative_to(ROOT))
            content = hashlib.sha256(path.read_bytes()).digest()
            for place in (name, os.path.dirname(name), EVERYTHING):
                found[place] += name.encode() + content
    return dict(found)


def digest(found: Iterable[str], held: Mapping[str, bytes]) -> str:
    """Of the content of these places, and of versions, processor and environment."""
    machine = [sys.version_info[:2], torch.__version__.partition("+")[0], np.__version__]
    machine += [torch.backends.cpu.get_cpu_capability(), *map(os.environ.get, SETTINGS)]
    always = {*ALWAYS, *(name for name in held if name.endswith("conftest.py"))}
    content = [name.encode() + held.get(name, b"") for name in (*sorted(always), *found)]
    return hashlib.sha256(b"\0".join([str(machine).encode(), *content])).hexdigest()[:24]


def group(item: Any) -> str:
    """The name under which a test is recorded."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    parts = [item.config.option.markexpr, item.nodeid.partition("::")[0], str(parameters.get("name", ""))]
    return " ".join(part for part in parts if part)


def unchanged(name: str, record: Mapping[str, Mapping[str, Any]]) -> bool:
    """True if a group passed with what its places hold now."""
    return name in record and digest(record[name]["places"], STARTED) == record[name]["digest"]


def recorded() -> dict[str, Any]:
    """What has passed, by group. The file lists the groups of one digest together: their places are the same."""
    kept = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return {
        name: {"digest": each, "places": found["places"]} for each, found in kept.items() for name in found["groups"]
    }


def _write(record: Mapping[str, Mapping[str, Any]]) -> None:
    kept: dict[str, Any] = {}
    for name in sorted(record):
        found = {"places": record[name]["places"], "groups": []}
        kept.setdefault(record[name]["digest"], found)["groups"].append(name)
    lines = [f"{json.dumps(each)}: {json.dumps(kept[each])}" for each in sorted(kept)]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _forget() -> None:
    """Empty what functions keep, so that the next group reads it as well."""
    for name, module in list(sys.modules.items()):
        for value in (
            list(vars(module).values()) if name.startswith(("regard.", "regard_lab.", "evidence.", "tests.")) else ()
        ):
            if isinstance(value, functools._lru_cache_wrapper) and value is not _imports:
                value.cache_clear()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    record = {} if os.environ.get("REGARD_ALL") else recorded()
    out = {name for name in {group(item) for item in items} if unchanged(name, record)}
    left_out = [item for item in items if group(item) in out]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if group(item) not in out]
    sizes = [group(item) for item in items]
    for item in items:
        item.user_properties.append(("group", [group(item), sizes.count(group(item))]))


class Watched:
    """Notes what every test reads, where it runs."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[object]:
        with reading() as files:
            result = yield
            SETTING_UP[fixturedef.argname] |= files
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        SEEN.clear()
        SEEN.update({str(item.path), *(str(folder / "conftest.py") for folder in item.path.parents)})
        sys.setprofile(_called)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            if nextitem is None or group(nextitem) != group(item):
                _forget()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        if call.when == "teardown":
            shared = (SETTING_UP[name] for name in item.fixturenames)  # pyright: ignore[reportAttributeAccessIssue]
            item.user_properties.append(("places", places(SEEN.union(*shared))))
        return (yield)


class Passed:
    """What passed in this session, gathered where all reports arrive."""

    def __init__(self) -> None:
        self.places: dict[str, set[str]] = {}
        self.left: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told: dict[str, Any] = dict(report.user_properties)
        name, count = told.get("group", ("", 0))  # a worker that crashed tells none
        self.left.setdefault(name, count)
        if not report.passed:
            self.left[name] = -1
        elif report.when == "teardown" and self.left[name] > 0:
            self.places.setdefault(name, set()).update(told["places"])
            self.left[name] -= 1

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        now, record = contents(), recorded()
        for name, found in ((name, sorted(found)) for name, found in self.places.items() if self.left[name] == 0):
            if digest(found, STARTED) == digest(found, now):  # else it may have passed with what no longer is
                record[name] = {"digest": digest(found, now), "places": found}
        _write(record)


@functools.cache
def _watch() -> None:
    sys.addaudithook(_audited)  # there is no way to remove it


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:  # all were left out
        session.exitstatus = pytest.ExitCode.OK


def pytest_configure(config: pytest.Config) -> None:
    STARTED.clear()
    STARTED.update(contents())
    options = ("keyword", "deselect", "lf", "stepwise")
    part = any(getattr(config.option, name, None) for name in options) or any("::" in name for name in config.args)
    if part or not os.environ.get("REGARD_RECORD"):  # part of a group does not pass for all of it
        return
    _watch()
    config.pluginmanager.register(Watched())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Passed())


if os.environ.get("REGARD_RECORD"):
    _watch()  # before the first conftest is imported
