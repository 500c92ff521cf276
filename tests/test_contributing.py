"""The worked example of CONTRIBUTING.md: a third party's mechanism in one block passes the whole suite."""

import re
from pathlib import Path

import pytest

import regard
from regard import catalog
from regard.errors import ConfigError
from regard.testing import CHECKS, check_attention


@pytest.fixture(scope="module")
def mechanism():
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names = {"__name__": "third_party"}
    exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    yield names["SoftCap"]
    catalog.unregister("soft_cap")


def test_it_is_in_the_catalog_under_its_name(mechanism):
    assert "soft_cap" in regard.names()
    assert "soft_cap" in regard.names(supports=["causal", "state"])
    assert isinstance(regard.build("soft_cap(cap=3.0)", regard.Heads(count=1, key_dim=4)), mechanism)
    with pytest.raises(ConfigError, match="did you mean 'cap'"):
        regard.build("soft_cap(cp=3.0)", regard.Heads(count=1, key_dim=4))
    with pytest.raises(ConfigError, match="greater than 0"):
        regard.build("soft_cap(cap=-1.0)", regard.Heads(count=1, key_dim=4))


def test_it_passes_the_whole_suite(mechanism):
    results = check_attention("soft_cap")
    assert {result.check for result in results} == set(CHECKS)
    assert [f"{r.check}: {r.message}" for r in results if r.status == "failed"] == []
