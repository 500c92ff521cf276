"""The two READMEs show the same things, count what there is, and have what is written from the catalog."""

import importlib.util
import re
from pathlib import Path

import pytest

from regard import catalog, position

ROOT = Path(__file__).parents[2]
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")}


def writer():
    spec = importlib.util.spec_from_file_location("docs_readme", ROOT / "docs" / "readme.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))  # it imports its neighbour
        spec.loader.exec_module(module)
    return module


def code(text: str, language: str) -> list[str]:
    """The lines of its blocks, without comments."""
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    lines = (re.sub(r"(^|\s+)#.*", "", line) for block in blocks for line in block.splitlines())
    return [line for line in lines if line]


def test_the_same_python():
    english, chinese = (code(text, "python") for text in TEXTS.values())
    assert len(english) > 15
    assert english == chinese


def test_every_command_of_one_is_in_the_other():
    """The Chinese one has commands for Chinese text besides."""
    english, chinese = (code(text, "bash") for text in TEXTS.values())
    assert len(english) > 12
    assert [line for line in chinese if line in english] == english
    assert all(re.search(r"song_ci|runs/ci", line) for line in chinese if line not in english)


def test_the_same_structure():
    english, chinese = TEXTS.values()
    for shape in (r"^## ", r"^- \*\*", r"^\|", r"^!\[.*\]\(docs/picture.svg\)$"):
        found = len(re.findall(shape, english, re.MULTILINE))
        assert found > 0
        assert len(re.findall(shape, chinese, re.MULTILINE)) == found
    named = [
        set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))) for text in (english, chinese)
    ]
    assert named[0] <= named[1]
    assert all("song_ci" in one or one.endswith(".html") for one in named[1] - named[0])


def test_what_is_counted():
    english, chinese = TEXTS.values()
    assert re.findall(r"(\d+) mechanisms", english) == [str(len(catalog.names()))]
    assert re.findall(r"(\d+) 种机制", chinese) == [str(len(catalog.names()))]
    assert len(position.names()) == 10
    assert "ten position schemes" in english
    assert "十种位置编码" in chinese


@pytest.mark.parametrize("file", TEXTS)
def test_the_table_is_that_of_the_catalog(file):
    """Written by `python docs/readme.py`; run it again when the catalog grows."""
    text = TEXTS[file]
    assert writer().filled(file, text) == text
    table = text.partition("<!-- mechanisms: ")[2].partition("<!-- end of mechanisms -->")[0]
    found = re.findall(r"\[`(\w+)`\]\((src/regard/attention/\w+/(\w+)\.py)\)", table)
    assert sorted(name for name, _, _ in found) == sorted(catalog.names())
    assert all(name == stem and (ROOT / path).exists() for name, path, stem in found)


def test_a_stale_table_would_be_seen():
    stale = re.sub(r"\[`local`\]\([^)]*\)", "[`locale`](src/regard)", TEXTS["README.md"])
    assert writer().filled("README.md", stale) == TEXTS["README.md"] != stale


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_map_has_every_package(text):
    """One line each, with a few words; every folder of the root that is tracked."""
    (tree,) = re.findall(r"```text\n(src/regard/ .*?)```", text, re.DOTALL)
    lines = re.findall(r"^( *)(\S+?)/? {2,}(.+)$", tree, re.MULTILINE)
    tops = [name for indent, name, _ in lines if not indent]
    assert tops == ["src/regard", "src/regard_lab", "evidence", "tests", "docs", "examples"]
    within = {top: tree.partition(f"{top}/ ")[2] for top in tops[:2]}
    for top, below in within.items():
        inner = set(re.findall(r"^  (\S+?)/? {2,}", re.split(r"^\S", below, flags=re.MULTILINE)[0], re.MULTILINE))
        packages = {path.parent.name for path in (ROOT / top).glob("*/__init__.py")}
        assert inner - {"*.py"} == packages
    assert all((ROOT / name).is_dir() for name in tops)
    assert all(len(words) > 3 for *_, words in lines)
    assert len(lines) == tree.count("\n")


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_links_lead_somewhere(text):
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / target).exists(), target
