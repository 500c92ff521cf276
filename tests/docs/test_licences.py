"""Every dependency is in the record, under a licence that is allowed, and says so itself where it is installed."""

import tomllib
from importlib import metadata
from pathlib import Path

import licences
import pytest
from packaging.requirements import Requirement

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DIRECT = [
    licences.normalised(Requirement(each).name)
    for each in [
        *PROJECT["dependencies"],
        *(one for extra in licences.EXTRAS for one in PROJECT["optional-dependencies"][extra]),
    ]
]


def test_every_extra_is_for_users_or_for_those_who_develop():
    assert {*licences.EXTRAS, "test", "docs"} == set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("name", sorted(set(DIRECT)))
def test_every_direct_dependency_is_recorded(name):
    """Run `make licences` where this fails."""
    assert name in licences.recorded()
    assert any(f"| {name} |" in line for line in licences.lines())


def test_every_recorded_licence_is_allowed_and_is_that_of_what_is_installed():
    compared, same = 0, 0
    for name, one in licences.recorded().items():
        assert licences.refused(one["licence"]) == [], name
        try:
            installed = licences.licence(name)
        except metadata.PackageNotFoundError:
            continue
        assert licences.refused(installed) == [], name
        compared, same = compared + 1, same + (installed == one["licence"])
    assert compared >= len(DIRECT)
    assert same > 0.9 * compared, "other versions word a few differently; run `make licences`"


@pytest.mark.parametrize(
    ("expression", "refused"),
    [
        ("MIT", []),
        ("GPL-3.0-only OR MIT", []),
        ("Apache-2.0 WITH LLVM-exception AND MIT", []),
        ("MIT AND GPL-3.0-only", ["GPL-3.0-only"]),
        ("(Apache-2.0 OR BSD-2-Clause) AND Proprietary", ["Proprietary"]),
        ("nothing", ["nothing"]),
    ],
)
def test_what_is_not_allowed_is_refused(expression, refused):
    assert licences.refused(expression) == refused


def test_a_licence_that_is_not_allowed_fails_the_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(licences, "RECORDED", tmp_path / "licences.json")
    monkeypatch.setattr(licences, "needed", lambda: {"numpy": "regard"})  # extras are not installed for the tests
    assert licences.main() == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(licences, "ALLOWED", {"0BSD"})
    assert licences.main() == 7
    assert "numpy: " in capsys.readouterr().err
