"""What an installation lacks, and how to get it."""

import json
import tomllib
from pathlib import Path

import torch

from regard.cli import doctor

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_extra_is_listed_with_its_installation(regard, monkeypatch):
    monkeypatch.setattr(doctor, "_installed", lambda requirement: not requirement.startswith("gguf"))
    found = json.loads(regard("doctor", "--json").out)
    assert {"memory", "free disk here", "cuda", "optional"} <= set(found)
    extras = found["extras"]
    assert extras.keys() == PROJECT["optional-dependencies"].keys()
    assert extras["pretrained"]["install"] == "pip install 'regard[pretrained]'"
    assert extras["pretrained"]["missing"][0].startswith("gguf")
    assert extras["log"]["missing"] == []
    answer = regard("doctor")
    assert answer.code == 0
    assert found["torch"] == torch.__version__
    assert torch.__version__ in answer.out
    for name in extras:
        assert f"pip install 'regard[{name}]'" in answer.out


def test_a_requirement_is_a_package_in_a_version():
    assert doctor._installed("numpy>=1.26")
    assert not doctor._installed("numpy>=999.1")
    assert not doctor._installed("package-of-nobody>=1")
