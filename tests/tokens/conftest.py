"""Corpora for stores: every kind of file, several folders, documents of all lengths."""

import json
from pathlib import Path

import numpy as np
import pytest

WORDS = ["one", "two", "three", "né", "中文", "\n", "stop."]


def write(folder: Path, documents: int = 300) -> list[str]:
    """Write a corpus with separator ||; all its documents."""
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(WORDS, draw.integers(1, 120))) + f" {number}" for number in range(documents)]
    third = documents // 3
    (folder / "deep").mkdir(parents=True)
    rows = "".join(json.dumps({"text": each}, ensure_ascii=False) + "\n" for each in texts[:third])
    (folder / "rows.jsonl").write_text(rows, encoding="utf-8")
    (folder / "deep" / "parts.txt").write_text("||".join(texts[third : 2 * third]), encoding="utf-8")
    for number, each in enumerate(texts[2 * third :]):
        (folder / "deep" / f"{number}.md").write_text(each, encoding="utf-8")
    return texts


@pytest.fixture
def corpus(tmp_path) -> Path:
    """A folder of text."""
    write(tmp_path / "corpus")
    return tmp_path / "corpus"


def contents(folder: Path) -> dict[str, bytes]:
    """Of all files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
