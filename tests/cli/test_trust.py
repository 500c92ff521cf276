"""Code of others: what a folder, a run or a configuration holds is not run unless somebody says so."""

import subprocess
import sys

import pytest

from regard.files import consent

BAIT = 'open("bitten", "w").close()\n'
OTHERS = ("--model.position", "sinusoidal", "--out", "named")
MINE = BAIT + "from regard.attention.dense.uniform import Uniform\n\n\nclass Mine(Uniform):\n    pass\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a module, in a process that was told nothing yet."""
    (tmp_path / "bait_of_the_folder.py").write_text(MINE)
    monkeypatch.setattr(consent, "_agreed", set())
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    sys.modules.pop("bait_of_the_folder", None)


def again(folder, monkeypatch):
    """As in a new process."""
    monkeypatch.setattr(consent, "_agreed", set())
    sys.modules.pop("bait_of_the_folder", None)
    (folder / "bitten").unlink(missing_ok=True)


@pytest.fixture
def named(regard, folder, tiny, monkeypatch):
    """A run whose mechanism is a class of the folder."""
    small = ["--task", "copy", *tiny, "--task.num-examples", "8", "--task.num-held-out", "4", "--steps", "1"]
    answer = regard("train", *small, "--model.attention", "bait_of_the_folder:Mine", *OTHERS)
    assert answer.code == 0, answer.err
    assert (folder / "bitten").exists()
    again(folder, monkeypatch)
    return folder / "named"


REFUSED = (
    "config.toml names bait_of_the_folder:Mine, so the module bait_of_the_folder would be imported and run: if you "
    "trust it, add --trust (in Python: trust=True)"
)


@pytest.mark.parametrize("words", [("evaluate", "named"), ("train", "--resume", "named"), ("generate", "named", "x")])
def test_a_run_imports_what_it_names_with_trust_alone(regard, folder, named, words):
    answer = regard(*words)
    assert (answer.code, answer.out) == (2, "")
    assert REFUSED in answer.err
    assert not (folder / "bitten").exists()
    regard(*words, "--trust")
    assert (folder / "bitten").exists()


def test_a_configuration_imports_what_it_names_with_trust_alone(regard, folder, named, monkeypatch):
    words = ("train", "--config", named / "config.toml", "--out", "other")
    answer = regard(*words)
    assert answer.code == 2
    assert REFUSED in answer.err
    assert not (folder / "bitten").exists()
    assert regard(*words, "--trust").code == 0
    assert (folder / "bitten").exists()


@pytest.mark.parametrize("words", [["list"], ["info", "softmax"], ["train", "--help"]])
def test_a_file_of_the_folder_with_a_familys_name_is_not_run(tmp_path, environment, words):
    for name in ("sparse", "dense", "kernel", "routed", "lowrank", "synthesized"):
        (tmp_path / f"{name}.py").write_text(f'open("bitten-{name}", "w").close()\nraise SystemExit(9)\n')
    found = subprocess.run(
        [sys.executable, "-m", "regard", *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    assert list(tmp_path.glob("bitten*")) == []


def test_a_process_of_its_own_runs_no_file_of_the_folder(tmp_path, monkeypatch, environment):
    """`python -m` would put the working folder first, where a file hides an installed package."""
    from regard.core.errors import ConfigError
    from regard_lab.benchmark.worker import in_worker

    (tmp_path / "torch.py").write_text(BAIT)
    (tmp_path / "statistics.py").write_text(BAIT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    payload = {"turns": [{"task": "copy", "model": {"heads": 0}, "task_config": {}, "training": {}}]}
    with pytest.raises(ConfigError, match="heads must be at least 1"):
        in_worker("regard_lab.benchmark.quality", payload, threads=1)
    assert not (tmp_path / "bitten").exists()


def test_a_process_of_its_own_finds_a_typed_class_of_the_folder(tmp_path, monkeypatch, environment):
    from regard.core.errors import ConfigError
    from regard_lab.benchmark.worker import in_worker

    (tmp_path / "bait_of_the_folder.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    model = {"dim": 8, "heads": 2, "layers": 1, "attention": ["bait_of_the_folder:Nothing"]}
    payload = {"turns": [{"task": "copy", "model": model, "task_config": {}, "training": {"threads": 1}, "run": "run"}]}
    payload["budget_seconds"] = 10.0
    with pytest.raises(ConfigError, match="has no attribute 'Nothing'"):
        in_worker("regard_lab.benchmark.quality", payload, threads=1)
    assert (tmp_path / "bitten").exists()
