"""The two READMEs show the same things, and count what there is."""

import re
from pathlib import Path

from regard import catalog, position

ROOT = Path(__file__).parents[2]
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")}


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
