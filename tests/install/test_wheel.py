"""The wheel in a clean environment: it holds what it needs, lists the catalog and trains."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.install
ROOT = Path(__file__).parents[2]
NEEDED = (
    "regard/py.typed",
    "regard/report/templates/report.html",
    "regard/tasks/corpora/state_of_the_union.tsv.xz",
    "regard/tasks/corpora/song_ci.tsv.xz",
    "regard/tasks/corpora/NOTICE",
    "regard/cli/main.py",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(words, check=True, capture_output=True)
    (path,) = folder.glob("regard-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A clean environment with the wheel; its dependencies are those of this one, the checkout is not in sight."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder


def run(folder, *words):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    return subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment, check=True).stdout


def test_the_wheel_holds_what_it_needs(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert [name for name in NEEDED if name not in names] == []
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("licenses/NOTICE") for name in names)


def test_it_lists_and_trains_from_the_wheel(installed):
    home = run(installed, installed / "bin" / "python", "-c", "import regard; print(regard.__file__)").strip()
    assert Path(home).is_relative_to(installed)
    regard = installed / "bin" / "regard"
    assert "softmax" in run(installed, regard, "list")
    words = ["train", "--out", "one", "--steps", "1", "--batch-size", "2", "--evaluate-examples", "2"]
    run(installed, regard, *words, "--model.dim", "32", "--task.length", "32")
    assert (installed / "one" / "checkpoints" / "step-00000001").is_dir()
