"""Published architectures: one file, one name, found without importing any of the others."""

import importlib

import pytest

from regard.core.errors import UnsupportedError
from regard.integrations import architectures


@pytest.mark.parametrize("name", architectures.names())
def test_a_file_holds_the_architecture_of_its_name(name):
    found = architectures.by_name(name, "here")
    assert isinstance(found, architectures.Architecture)
    assert found.name == name
    titles = [title for form in found.forms for title in form.titles]
    assert titles
    assert len(set(titles)) == len(titles)


def test_listing_imports_no_architecture(monkeypatch):
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"{name} is imported"))
    assert {"llama", "big_bird"} <= set(architectures.names())
    with pytest.raises(UnsupportedError, match="here holds the architecture 'mamba'; regard loads bart, bert, "):
        architectures.by_name("mamba", "here")


def test_only_the_one_that_is_asked_for_is_imported(monkeypatch):
    imported = []
    monkeypatch.setattr(importlib, "import_module", lambda name: imported.append(name) or fake(name))
    assert architectures.by_name("gpt2", "here").name == "gpt2"
    assert imported == ["regard.integrations.architectures.gpt2"]


def fake(name: str) -> object:
    """A module that holds what its name promises."""

    class Module:
        GPT2 = architectures.Architecture(name.rpartition(".")[2], config=str, settings=dict, forms=())

    return Module
