"""Every published form keeps the contract of mechanisms, apart from causality: it is declared to leak, and does."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

from regard.core.attention import Attention
from regard.testing import check_attention
from regard_lab import published


def mechanisms() -> Iterator[type[Attention]]:
    """The mechanisms of the package, each in a module of its own."""
    for found in pkgutil.walk_packages(published.__path__, f"{published.__name__}."):
        for cls in vars(importlib.import_module(found.name)).values():
            if inspect.isclass(cls) and issubclass(cls, Attention) and cls.__module__ == found.name:
                yield cls


PUBLISHED = list(mechanisms())


@pytest.mark.parametrize("cls", PUBLISHED, ids=lambda cls: cls.__name__)
def test_contract(cls: type[Attention]) -> None:
    results = check_attention(cls)
    assert not [f"{r.check} {dict(r.options)}: {r.message}" for r in results if r.status == "failed"]
    leaks = [r.status for r in results if r.check == "leak"]
    assert leaks == ["passed"] * len(cls.samples)


@pytest.mark.parametrize("cls", PUBLISHED, ids=lambda cls: cls.__name__)
def test_it_is_final_documented_and_keeps_no_state(cls: type[Attention]) -> None:
    assert getattr(cls, "__final__", False)
    assert "Source:" in (cls.__doc__ or "")
    for options in cls.samples:
        info = cls.describe(options)
        assert info.leaks
        assert info.state == "none"
