"""The wheel: what is in it, and that it works in an environment of its own, without the checkout."""

import json
import re
import zipfile
from pathlib import Path

import pytest

import regard
from tests.install import environment
from tests.install.environment import ROOT, Installed

pytestmark = pytest.mark.install


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return environment.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Installed:
    return environment.install(wheel, tmp_path_factory.mktemp("installed"))


def test_what_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    info = f"regard-{regard.__version__}.dist-info"
    assert {
        "regard/py.typed",
        "regard_lab/report/templates/charts.html",
        "regard_lab/report/templates/claims.html",
        "regard_lab/report/templates/measured.html",
        "regard_lab/report/templates/page.html",
        "regard_lab/report/templates/report.html",
        "regard_lab/tasks/corpora/state_of_the_union.tsv.xz",
        "regard_lab/tasks/corpora/song_ci.tsv.xz",
        "regard_lab/tasks/corpora/NOTICE",
        f"{info}/licenses/LICENSE",
        f"{info}/licenses/NOTICE",
        f"{info}/entry_points.txt",
    } <= names
    source = ROOT / "src"
    modules = {path.relative_to(source).as_posix() for path in source.rglob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}
    outside = {name for name in names if not name.startswith(("regard/", "regard_lab/", info))}
    assert not outside
    assert not {name for name in names if "__pycache__" in name or "/tests/" in name or "mutant" in name}
    assert f"Version: {regard.__version__}" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert re.search(r"^Requires-Dist: torch>=", metadata, re.MULTILINE)
    assert "every attention mechanism" in metadata.lower()


def test_it_is_the_wheel_that_is_imported(installed):
    code = "import regard, torch, sys; print(regard.__file__); print(sys.prefix)"
    file, prefix = installed.run("python", "-c", code).stdout.split()
    assert Path(file).is_relative_to(prefix)
    assert not Path(file).is_relative_to(ROOT)
    paths = json.loads(installed.run("python", "-c", "import json, sys; print(json.dumps(sys.path))").stdout)
    assert not [path for path in paths if Path(path) in (ROOT, ROOT / "src")]


def test_version_and_list(installed):
    assert installed.run("regard", "--version").stdout == f"{regard.__version__}\n"
    found = json.loads(installed.run("regard", "list", "--json").stdout)
    assert list(found["mechanisms"]) == regard.names()
    assert found["presets"]
    assert "Scaled dot-product" in installed.run("regard", "info", "softmax").stdout
    assert "unknown command" in installed.run("regard", "lst", code=2).stderr


def test_a_step_of_training_on_the_bundled_text_and_a_continuation(installed):
    words = ["--model.dim", "16", "--model.layers", "1", "--model.heads", "2", "--task.length", "32", "--threads", "1"]
    words += ["--steps", "1", "--batch-size", "2", "--evaluate-examples", "4", "--out", "run", "--json"]
    found = json.loads(installed.run("regard", "train", *words).stdout)
    assert 0 < found["evaluation"]["bits_per_byte"] < 20
    recorded = json.loads((installed.folder / "run" / "env.json").read_text())
    assert recorded["versions"]["regard"] == regard.__version__
    assert recorded["revision"] is None
    assert installed.run("regard", "generate", "run", "The state", "--max-new-tokens", "5").stdout


def test_the_reports_find_their_templates(installed):
    loader = "jinja2.PackageLoader('regard_lab.report')"
    code = f"from regard_lab.report import html; import jinja2; print({loader}.list_templates())"
    found = installed.run("python", "-c", code).stdout
    pages = ["charts", "claims", "explore", "measured", "page", "report"]
    names = sorted([*(f"{name}.html" for name in pages), "explore.js"])
    assert found == f"{names}\n"
