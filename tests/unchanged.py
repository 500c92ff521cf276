"""A pytest plugin that leaves out the tests of a stage for which nothing has changed since they last passed.

    pytest -p tests.unchanged tests/claims -m study                   # runs what changed, records what passed
    REGARD_ALL=1 pytest -p tests.unchanged tests/claims -m study      # runs everything

Tests of one file and one parameter `name` are a group. While a group runs, the plugin notes every file of the
repository whose functions are called or that is opened; `tests/passed.json` records the folders of these files, and of
what they import, with a digest of their content. A group is left out while its digest is the recorded one.
"""

import ast
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests" / "passed.json"
ONE_BY_ONE = ("tests", "src/regard/claims")
"""below these, files are recorded one by one; elsewhere, their folder"""
SEEN: set[str] = set()
"""files that were read since it was last cleared"""


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


def _opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str):
        SEEN.add(arguments[0])


@cache
def _imports(path: Path) -> frozenset[Path]:
    """Files of the repository that a module names in its import statements, those inside of functions left out."""
    found: set[str] = set()
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) + 1 - node.level], node.module or ""] if node.level else [node.module or ""]
            name = ".".join(part for part in base if part).removeprefix("src.")
            found |= {name, *(f"{name}.{alias.name}" for alias in node.names)}
    places = [root / Path(*name.split(".")) for name in found for root in (ROOT, ROOT / "src")]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return frozenset(file for file in files if file.is_file())


def places(files: Iterable[str]) -> list[str]:
    """Folders, or files where they are recorded one by one, of these files and of all that they import."""
    todo = {path for file in files if (path := Path(os.path.abspath(file))).is_relative_to(ROOT) and path.is_file()}
    done: set[Path] = set()
    while todo:
        path = todo.pop()
        done.add(path)
        if path.suffix == ".py":
            todo |= _imports(path) - done
    tracked = {str(path.relative_to(ROOT)) for path in done if path.parts[len(ROOT.parts)] in ("src", "tests")}
    alone = {name for name in tracked if name.startswith(ONE_BY_ONE)}
    return sorted(alone | {str(Path(name).parent) for name in tracked - alone})


@cache
def _content(place: str) -> bytes:
    path = ROOT / place
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    return b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files if file.is_file())


def digest(found: Iterable[str]) -> str:
    """Of the content of these places, and of the versions of Python and torch."""
    versions = f"{sys.version_info[:2]} {torch.__version__.partition('+')[0]}"
    content = [name.encode() + _content(name) for name in found]
    return hashlib.sha256(b"\0".join([versions.encode(), *content])).hexdigest()[:24]


def group(item: Any) -> str:
    """The name under which a test is recorded."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return " ".join([item.nodeid.partition("::")[0], *([str(parameters["name"])] if "name" in parameters else [])])


def unchanged(name: str, record: Mapping[str, Mapping[str, Any]]) -> bool:
    """True if a group passed with what its places hold now."""
    return name in record and digest(record[name]["places"]) == record[name]["digest"]


def recorded() -> dict[str, Any]:
    """What has passed, by group."""
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    SEEN.clear()
    SEEN.add(str(item.path))
    sys.setprofile(_called)
    try:
        return (yield)
    finally:
        sys.setprofile(None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    if call.when == "teardown":
        item.user_properties.append(("places", places(SEEN)))
    return (yield)


class Passed:
    """What passed in this session, gathered where all reports arrive."""

    def __init__(self) -> None:
        self.places: dict[str, set[str]] = {}
        self.left: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told: dict[str, Any] = dict(report.user_properties)
        name, count = told["group"]
        self.left.setdefault(name, count)
        if report.failed:
            self.left[name] = -1
        elif report.when == "teardown" and self.left[name] > 0:
            self.places.setdefault(name, set()).update(told["places"])
            self.left[name] -= 1

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:  # all were left out
            session.exitstatus = pytest.ExitCode.OK
        passed = {name: sorted(found) for name, found in self.places.items() if self.left[name] == 0}
        record = recorded() | {name: {"digest": digest(found), "places": found} for name, found in passed.items()}
        lines = [f"{json.dumps(name)}: {json.dumps(record[name])}" for name in sorted(record)]
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def pytest_configure(config: pytest.Config) -> None:
    chosen = config.option.keyword or any("::" in argument for argument in config.args)
    if not chosen and not hasattr(config, "workerinput"):  # part of a group does not pass for all of it
        config.pluginmanager.register(Passed())


sys.addaudithook(_opened)
