"""The pages of the classes that others build on: complete, and what the source says."""

import importlib.util
import inspect
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def load(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


load("pages")
api = load("api")
reference = load("reference")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generated")
    api.write(folder)
    return folder / "api"


@pytest.mark.parametrize("cls", api.CLASSES, ids=lambda cls: cls.__name__)
def test_a_page_is_complete(written, cls):
    """Every argument is explained, every public member is there, and the example shows more than a size."""
    page = (written / f"{cls.__name__}.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^from [\w.]+ import \w+$", page, re.MULTILINE)
    found = {}
    exec(line, found)
    assert found[cls.__name__] is cls
    if not inspect.isabstract(cls):
        signature = page.partition("## Building")[2].partition("```\n\n")[0]
        for name in inspect.signature(cls).parameters:
            assert re.search(rf"^    {name}: ", signature, re.MULTILINE), name
            assert re.search(rf"^(- |\| )`(\w+, )*{name}(, \w+)*`[:| ]", page, re.MULTILINE), name
    for name, member in vars(cls).items():
        if isinstance(member, property):
            assert f"| `{name}` | " in page
            assert (inspect.getdoc(member) or "").startswith(tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")), name
        elif inspect.isfunction(member) and not name.startswith("_") and name != "extra_repr":
            assert f"\n### {name}\n" in page
            assert f"\n{name}(" in page
    assert "## Example" in page
    assert "torch.Size" not in page
    assert page.count("```") % 2 == 0


def test_arguments_keep_their_shapes(written):
    page = (written / "AttentionLayer.md").read_text(encoding="utf-8")
    assert '    key_mask: Bool[Tensor, "batch keys"] | None = None,\n' in page
    assert "hidden: (batch, length, dim)" in page.partition("### forward")[2].partition("### ")[0]


def test_every_public_name_has_an_entry():
    """One page each for the classes that others build on; all others are on the pages of the reference."""
    pages = {name: getattr(reference, f"{name}_page")() for name in reference.PAGES}
    for name, each in reference.public().items():
        if each in api.CLASSES:
            continue
        line = f"\n| `{name}` |" if name.endswith("Error") else f"\nfrom regard import {name}\n"
        found = [page for page in pages.values() if line in page]
        assert len(found) == 1, name
        assert all(page.count("```") % 2 == 0 for page in found)
        if inspect.isfunction(each):
            entry = found[0].partition(f"\n## {name}\n")[2].partition("\n## ")[0]
            for argument in inspect.signature(each).parameters:
                assert re.search(rf"^    \**{argument}: |[(, *]{argument}: ", entry, re.MULTILINE), (name, argument)


def test_the_integrations_are_complete():
    page = reference.integrations_page()
    for module in (reference.pretrained, reference.torch_integration):
        for name in module.__all__:
            assert f"\nfrom {module.__name__} import {name}\n" in page


def test_the_calibration_is_complete():
    page = reference.calibration_page()
    for name in reference.calibration.__all__:
        assert f"\nfrom regard_lab.calibration import {name}\n" in page


def test_the_table_of_contents_has_every_page():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    functions, *others = reference.PAGES
    pages = [functions, *(cls.__name__ for cls in api.CLASSES), *others]
    assert re.findall(r"^generated/api/(\w+)$", index, re.MULTILINE) == pages


def test_the_table_of_contents_begins_where_a_newcomer_does():
    """Quickstart, concepts, guides; what the articles get wrong comes late."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"```\{toctree\}\n(?::[^\n]*\n)*\n(.*?)```", index, re.DOTALL)
    pages = [page for tree in trees for page in tree.split()]
    assert pages[:3] == ["quickstart", "concepts", "comparing"]
    assert pages.index("errata") > pages.index("generated/api/Call")
    assert {path.stem for path in DOCS.glob("*.md")} - {"index"} <= set(pages)
