"""The worked examples of CONTRIBUTING.md: a third party's mechanisms, a block each, pass the whole suite."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard import catalog
from regard.core.errors import ConfigError
from regard.testing import CHECKS, check_attention


@pytest.fixture(scope="module")
def mechanism(tmp_path_factory):
    """The first example's class; each block is a module of a third party."""
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("third_party")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        for at, block in enumerate(blocks):
            (folder / f"third_party_{at}.py").write_text(block, encoding="utf-8")
            importlib.import_module(f"third_party_{at}")
        yield sys.modules["third_party_0"].SoftCap
    for at, name in enumerate(("soft_cap", "fading")):
        catalog.unregister(name)
        del sys.modules[f"third_party_{at}"]


def test_it_is_in_the_catalog_under_its_name(mechanism):
    assert "soft_cap" in regard.names()
    assert "soft_cap" in regard.names(supports=["causal", "state"])
    assert isinstance(regard.build("soft_cap(cap=3.0)", regard.Heads(count=1, key_dim=4)), mechanism)
    with pytest.raises(ConfigError, match="did you mean 'cap'"):
        regard.build("soft_cap(cp=3.0)", regard.Heads(count=1, key_dim=4))
    with pytest.raises(ConfigError, match="greater than 0"):
        regard.build("soft_cap(cap=-1.0)", regard.Heads(count=1, key_dim=4))


@pytest.mark.parametrize("name", ["soft_cap", "fading"])
def test_it_passes_the_whole_suite(mechanism, name):
    results = check_attention(name)
    assert {result.check for result in results} == set(CHECKS)
    assert [f"{r.check}: {r.message}" for r in results if r.status == "failed"] == []


def test_a_layer_gives_the_gate_of_the_second(mechanism):
    layer = regard.AttentionLayer(16, "fading", heads=2, causal=True).eval()
    x = torch.randn(1, 9, 16)
    state, pieces = layer.initial_state(1), []
    with torch.no_grad():
        for token in x.split(1, 1):
            out = layer(token, state=state)
            state, pieces = out.state, [*pieces, out.hidden]
        torch.testing.assert_close(torch.cat(pieces, 1), layer(x).hidden)
