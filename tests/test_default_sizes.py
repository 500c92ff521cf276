"""The public check passes what people name first: every mechanism at its defaults, and what the READMEs spell out."""

import re
from pathlib import Path

import pytest

from regard import catalog, specs
from regard.testing import CHECKS, check_attention
from regard.testing.inputs import LENGTH, Subject
from regard.testing.sizes import growing, largest_size

ROOT = Path(__file__).parents[1]
FREE = {
    *(name for name, each in CHECKS.items() if "compilation" in each.run.__module__),
    *(name for name, each in CHECKS.items() if "transforms" in each.run.__module__),
}
"""depend on no size; tests/test_conformance.py has them for every name"""
SIZED = [check for check in CHECKS if check not in FREE]


def spelled_out():
    """Names with options, such as `local(window=256)`, in the READMEs."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")]
    found = {match for text in texts for match in re.findall(r"\b[a-z_0-9]+\([a-z_]+=[^()]*\)", text)}
    return sorted(spec for spec in found if specs.parse(spec).name in catalog.names())


def unchecked():
    """Defaults that no sample is, and whose sizes are beyond the lengths of most checks."""
    for name in catalog.names():
        cls, _ = catalog.resolve(name)
        if {} not in [dict(options) for options in cls.samples] and Subject(cls, {}).size > LENGTH:
            yield name


@pytest.mark.parametrize("spec", [*unchecked(), *spelled_out()])
def test_the_public_check_passes(spec):
    cls, options = catalog.resolve(spec)
    results = check_attention(cls, options=[options], checks=SIZED)
    assert [f"{r.check}: {r.message}" for r in results if r.status == "failed"] == []


def test_the_readmes_spell_something_out():
    assert "local(window=256)" in spelled_out()
    assert {"local", "bigbird", "vector_quantized", "strided"} <= set(unchecked())


def test_sizes_are_the_integers_among_the_options():
    assert largest_size({"rule": "window(64) | strided(128)", "flange": (8, 16), "learned": True, "scale": 0.5}) == 128
    assert largest_size({"window": None}) == 0
    assert growing(13, 3) == [13, 27, 55, 111]
    assert growing(13, 10**9)[-1] < 10_000
