"""The gallery: the predicate that is drawn is what the mechanism computes with, and every pattern is there."""

import doctest
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

from regard import catalog
from regard import patterns as masks
from regard.functional import weights
from regard_lab.benchmark.resting import resting_inputs

DOCS = Path(__file__).parents[2] / "docs"
SPARSE = [name for name in catalog.names() if catalog.family(name) == "sparse"]


def load():
    spec = importlib.util.spec_from_file_location("gallery", DOCS / "gallery.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["gallery"] = module
    spec.loader.exec_module(module)
    return module


gallery = load()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generated")
    gallery.write(folder)
    return folder


@pytest.mark.parametrize("name", SPARSE)
def test_the_drawn_predicate_is_what_gets_a_weight(name):
    for _, causal in gallery.kinds(name):
        built = gallery.mechanism(name, causal=causal)
        q, k = torch.randn(2, 1, gallery.HEADS, gallery.POSITIONS, 8, generator=torch.Generator().manual_seed(3))
        assert torch.equal(gallery.seen(built), weights(built, q, k, inputs=resting_inputs(built, q, k))[0] > 0)


def test_a_wrong_predicate_would_be_seen():
    built = gallery.mechanism("local", causal=True)
    built.pattern = masks.causal & masks.window(built.window + 1)
    drawn = gallery.seen(built)
    built.pattern = masks.causal & masks.window(built.window)
    assert not torch.equal(gallery.seen(built), drawn)


def test_every_primitive_is_there():
    makers = {name for name in masks.__all__ if name.islower()} - {"parse", "disjoint"}  # disjoint draws what | draws
    drawn = " ".join(gallery.primitives())
    assert {name for name in makers if not re.search(rf"\b{name}\b", drawn)} == set()


def test_every_picture_exists_once(written):
    page = (written / "gallery.inc").read_text(encoding="utf-8")
    files = re.findall(r"\(generated/gallery/([^)]*)\)", page)
    assert len(set(files)) == len(files)
    assert {path.name for path in (written / "gallery").iterdir()} == set(files)
    assert all((written / "gallery" / file).read_bytes().startswith(b"\x89PNG") for file in files)
    assert page.count("```") % 2 == 0


def test_heads_that_differ_have_a_picture_each():
    same, other = torch.eye(4, dtype=torch.bool)[None].expand(2, -1, -1), torch.ones(1, 4, 4, dtype=torch.bool)
    assert [one.file for one in gallery.drawings("a", "causal", same)] == ["a.png"]
    both = gallery.drawings("a", "causal", torch.cat([same[:1], other]))
    assert [(one.title, one.file) for one in both] == [("causal, head 0", "a-0.png"), ("causal, head 1", "a-1.png")]


def test_the_examples_run():
    found = doctest.testfile(str(DOCS / "gallery.md"), module_relative=False)
    assert found.failed == 0
    assert found.attempted >= 8
