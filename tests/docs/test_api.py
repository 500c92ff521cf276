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


def test_the_table_of_contents_has_every_page():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"^generated/api/(\w+)$", index, re.MULTILINE) == [cls.__name__ for cls in api.CLASSES]


def test_the_table_of_contents_begins_where_a_newcomer_does():
    """Quickstart, concepts, guides; what the articles get wrong comes late."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"```\{toctree\}\n(?::[^\n]*\n)*\n(.*?)```", index, re.DOTALL)
    pages = [page for tree in trees for page in tree.split()]
    assert pages[:3] == ["quickstart", "concepts", "comparing"]
    assert pages.index("errata") > pages.index("generated/api/Call")
    assert {path.stem for path in DOCS.glob("*.md")} - {"index"} <= set(pages)
