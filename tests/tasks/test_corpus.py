"""What users give: every kind of file, every way to be wrong, and splits that leak nothing."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.core.errors import ConfigError, DataError
from regard_lab.tasks import TextConfig, build_task
from regard_lab.tasks.corpus import Corpus, Streamed, open_corpus


def texts(path: Path | str, **options: object) -> list[str]:
    return [document.text for document in open_corpus(TextConfig(corpus=str(path), **options)).parse()]


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_bundled_addresses() -> None:
    corpus = open_corpus(TextConfig())
    documents = list(corpus.parse())
    assert len(documents) == 233
    assert documents[0].group == "1790"
    assert documents[0].text.startswith("Fellow-Citizens of the Senate and House of Representatives:")
    split_of = corpus.splits(0.05)
    assert len(split_of) == 231  # years: 1953 and 1961 have two addresses each, which stay together
    assert [list(split_of.values()).count(split) for split in ("train", "valid", "test")] == [207, 12, 12]


def test_bundled_poems() -> None:
    corpus = open_corpus(TextConfig(corpus="song_ci"))
    documents = list(corpus.parse())
    assert len(documents) == 21_053
    assert documents[0].text.startswith("导引\n和岘\n气和玉烛")
    split_of = corpus.splits(0.05)
    bodies: dict[str, set[str]] = {}
    for document in documents:
        bodies.setdefault(document.text.split("\n")[2], set()).add(split_of[document.group])
    assert all(len(splits) == 1 for splits in bodies.values())  # equal poems under two authors stay together
    assert len(bodies) < 21_053


def test_source_code_of_this_python() -> None:
    """Its modules are whole, each in one split, and options for files are refused."""
    corpus = open_corpus(TextConfig(corpus="python_library"))
    documents = list(corpus.parse())
    assert len(documents) == len(corpus.paths) > 50
    assert Path(json.__file__).parent.with_name("keyword.py") in corpus.paths
    assert Path(os.__file__).read_text(encoding="utf-8") in {document.text for document in documents}
    assert set(corpus.splits(0.05).values()) == {"train", "valid", "test"}
    with pytest.raises(ConfigError, match="leave it out"):
        open_corpus(TextConfig(corpus="python_library", separator="def"))


def test_a_python_without_source_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match="this Python has no modules as files"):
        open_corpus(TextConfig(corpus="python_library"))


def test_documents_have_the_names_of_their_files(tmp_path: Path) -> None:
    """As they are called in the folder; of several in a file with their number."""
    write(tmp_path / "b" / "two.txt", "one--two")
    write(tmp_path / "rows.jsonl", '{"text": "x"}\n{"text": "y"}\n')
    config = TextConfig(corpus=str(tmp_path))
    assert [one.name for one in open_corpus(config).parse()] == ["b/two.txt", "rows.jsonl:1", "rows.jsonl:2"]
    named = ["b/two.txt:1", "b/two.txt:2"]
    assert [one.name for one in open_corpus(replace(config, separator="--")).parse()][:2] == named
    one = replace(config, corpus=str(tmp_path / "b" / "two.txt"), separator="--")
    assert [one.name for one in open_corpus(one).parse()] == ["two.txt:1", "two.txt:2"]


def test_one_file_is_cut_in_three_after_lines(tmp_path: Path) -> None:
    content = "".join(f"line {number} of the text\n" for number in range(400))
    path = write(tmp_path / "a.txt", content)
    corpus = open_corpus(TextConfig(corpus=str(path), holdout=0.1))
    documents = list(corpus.parse())
    assert [document.group for document in documents] == ["train", "valid", "test"]
    assert [document.name for document in documents] == ["a.txt:train", "a.txt:valid", "a.txt:test"]
    assert corpus.splits(0.1) == {"train": "train", "valid": "valid", "test": "test"}
    assert "".join(document.text for document in documents) == content
    assert all(document.text.endswith("\n") for document in documents)
    assert abs(len(documents[0].text) - 0.8 * len(content)) < 30
    unbroken = texts(write(tmp_path / "b.txt", "字" * 1000), holdout=0.1)
    assert [len(text) for text in unbroken] == [800, 100, 100]


def test_file_with_separator_and_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one<|end|>two<|end|>three<|end|>")
    assert texts(path, separator="<|end|>") == ["one", "two", "three"]
    write(tmp_path / "sub" / "b.txt", "\ufefffour")
    write(tmp_path / "notes.rst", "not read")
    assert texts(tmp_path) == ["one<|end|>two<|end|>three<|end|>", "four"]
    assert texts(tmp_path, separator="<|end|>") == ["one", "two", "three", "four"]


def test_a_folder_is_read_in_order_and_says_what_it_leaves_out(tmp_path: Path, caplog) -> None:
    for name in ("b/c.py", "a.txt", "b.md", "z/y/x.TXT"):
        write(tmp_path / name, f"{name}\n" * 9)
    write(tmp_path / "b" / "d.csv", 'text,id\n"one, or\ntwo",1\nthree,2\n')
    write(tmp_path / "e.jsonl", '{"text": "four"}\n')
    for name in (".hidden.txt", ".git/c.txt", ".git/d.txt", "b/__init__.py", "noise.txt", "wide.txt", "x.png"):
        kept = {"b/__init__.py": "", "noise.txt": b"a\0b", "wide.txt": "caf\xe9".encode("utf-16")}
        write(tmp_path / name, kept.get(name, "not read"))
    (tmp_path / "z" / "back").symlink_to(tmp_path, target_is_directory=True)  # a circle
    corpus = open_corpus(TextConfig(corpus=str(tmp_path)))
    paths = ["a.txt", "b/c.py", "b/d.csv", "b.md", "e.jsonl", "z/y/x.TXT"]
    assert [str(path.relative_to(tmp_path)) for path in corpus.paths] == paths
    assert [text[:7] for text in texts(tmp_path)] == [
        "a.txt\na",
        "b/c.py\n",
        "one, or",
        "three",
        "b.md\nb.",
        "four",
        "z/y/x.T",
    ]
    left = "1 binary, 1 empty, 2 hidden, 1 link(s) to folders, 1 of UTF-16, 1 of other kinds"
    assert corpus.left_out == f"; left out: {left}"
    build_task(TextConfig(corpus=str(tmp_path), length=4, cache=str(tmp_path / ".cache")))
    assert f"{tmp_path}: 6 file(s) are read; left out: 1 binary" in caplog.text
    assert [path.name for path in open_corpus(TextConfig(corpus=str(tmp_path), suffixes=(".md",))).paths] == ["b.md"]


def test_folders_that_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.csv", "body\nx\n")
    with pytest.raises(DataError, match=r"data/a\.csv, line 1: no column 'text'; .*--task\.field"):
        texts(tmp_path / "data")
    write(tmp_path / "more" / "a.txt", b"caf\xe9")
    with pytest.raises(DataError, match=r"more/a\.txt: no UTF-8: byte 0xe9 at byte 4"):
        texts(tmp_path / "more")
    (tmp_path / "more" / "b.txt").symlink_to(tmp_path / "more" / "b.txt")
    with pytest.raises(DataError, match=r"cannot read .*more/b\.txt: Too many levels of symbolic links"):
        texts(tmp_path / "more")
    write(tmp_path / "empty" / "a.txt", "")
    with pytest.raises(DataError, match=r"holds no file that regard reads .*; left out: 1 empty$"):
        texts(tmp_path / "empty")
    with pytest.raises(ConfigError, match=r"suffixes=\('\.rst',\) is not possible; it must be some of \.txt, \.md"):
        TextConfig(suffixes=(".rst",))


@pytest.mark.parametrize("name", ["a.md", "a.py", "A.TXT"])
def test_files_of_text_are_cut_in_three(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "a line\n" * 100)
    assert open_corpus(TextConfig(corpus=str(path))).continuous
    assert "".join(texts(path)) == "a line\n" * 100


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"text": "one\ntwo"}, {"text": "三", "id": 3}]
    path = write(tmp_path / "a.jsonl", "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    assert texts(path) == ["one\ntwo", "三"]
    assert texts(write(tmp_path / "b.jsonl", '{"body": "x\u2028y"}\n'), field="body") == ["x\u2028y"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"body": "b"}\n', "line 2: no field 'text'; fields: 'body'; .*--task.field"),
        (b'{"text": "a"}\n{oops\n', "line 2: no JSON"),
        (b'["a"]\n', "line 1: expected an object"),
        (b'{"text": 3}\n', "line 1: field 'text' holds int"),
        (b'{"text": "a\\u0000"}\n', r"line 1: field 'text' holds U\+0000"),
        (b'{"text": "\\ud800"}\n', "half a surrogate pair"),
        (b'{"text": "a"}\n{"text": "\xff"}\n', "line 2: no UTF-8: byte 0xff at byte 11 "),
        (b"\n \n", "is empty"),
        (b"", "is empty"),
    ],
)
def test_malformed_json_lines(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        texts(write(tmp_path / "a.jsonl", content))
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.txt is empty"),
        (b"\x89PNG\r\n\0\0", "binary, with a zero byte at byte 1 of line 2"),
        ("caf\xe9".encode("utf-16"), "UTF-16 by its first two bytes; convert .*iconv -f UTF-16"),
        ("caf\xe9".encode("utf-16-be"), "binary, with a zero byte at byte 1"),
        (b"caf\xe9 au lait", "no UTF-8: byte 0xe9 at byte 4 .*iconv"),
        ("天".encode()[:2], "byte 1 "),
    ],
)
def test_malformed_text(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        texts(write(tmp_path / "a.txt", content))


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file.*did you mean 'song_ci'"):
        open_corpus(TextConfig(corpus="song_cy"))
    with pytest.raises(DataError, match=r"holds no file that regard reads \(\.txt, .*\.parquet\)$"):
        open_corpus(TextConfig(corpus=str(tmp_path)))
    with pytest.raises(DataError, match=r"not \.xml"):
        open_corpus(TextConfig(corpus=str(write(tmp_path / "a.xml", "x"))))
    (tmp_path / "gone.txt").symlink_to(tmp_path / "a.xml")
    corpus = open_corpus(TextConfig(corpus=str(tmp_path / "gone.txt")))
    os.remove(tmp_path / "a.xml")
    for act in (corpus.fingerprint, lambda: list(corpus.parse())):
        with pytest.raises(DataError, match="cannot read"):
            act()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("state_of_the_union", {"field": "text"}),
        ("song_ci", {"separator": "x"}),
        ("a.txt", {"field": "text"}),
        ("a.jsonl", {"separator": "x"}),
        ("a.csv", {"separator": "x"}),
        ("a.md", {"field": "text"}),
        ("a.md", {"suffixes": (".md",)}),
        ("texts", {"field": "text"}),
        ("tables", {"separator": "x"}),
    ],
)
def test_options_without_use_are_refused(tmp_path: Path, name: str, options: dict[str, str]) -> None:
    for file in ("a.txt", "a.jsonl", "a.csv", "a.md", "texts/a.py", "tables/a.csv"):
        write(tmp_path / file, "x")
    corpus = name if "_" in name else str(tmp_path / name)
    with pytest.raises(ConfigError, match="leave it out"):
        open_corpus(TextConfig(corpus=corpus, **options))


@settings(max_examples=40, deadline=None)
@given(count=st.integers(3, 40), holdout=st.floats(0.01, 0.49))
def test_splits_depend_on_the_set_of_groups_alone(count: int, holdout: float) -> None:
    groups = [f"诗 {number}" for number in range(count)]

    def splits(order: list[str]) -> dict[str, str]:
        return Corpus("c", (), lambda: (Streamed(["x"], group) for group in order)).splits(holdout)

    one = splits(groups)
    assert splits([*reversed(groups), groups[0]]) == one
    counts = {split: list(one.values()).count(split) for split in ("train", "valid", "test")}
    assert set(one) == set(groups)
    assert counts["valid"] == counts["test"] >= 1
    assert counts["train"] >= 1
    assert counts["valid"] <= max(1, holdout * len(groups) + 0.5)


@pytest.mark.parametrize("holdout", [0.05, 0.1, 0.3])
def test_the_first_groups_by_hash_are_the_test_and_the_next_validation(holdout: float) -> None:
    """Disjoint, of the stated size, and not swapped: the same ones as in earlier versions."""
    groups = [str(number) for number in range(200)]
    ranked = sorted(groups, key=lambda group: hashlib.sha256(group.encode()).hexdigest())
    size = round(200 * holdout)
    wanted = {"test": ranked[:size], "valid": ranked[size : 2 * size], "train": ranked[2 * size :]}
    found = Corpus("c", (), lambda: (Streamed(["x"], group) for group in groups)).splits(holdout)
    for split, members in wanted.items():
        assert {group for group in groups if found[group] == split} == set(members)


def test_equal_documents_are_one_group(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        write(tmp_path / f"{name}.txt", "the same")
    with pytest.raises(DataError, match="1 distinct document"):
        open_corpus(TextConfig(corpus=str(tmp_path))).splits(0.05)


def test_fingerprint_follows_the_content(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one")
    before = open_corpus(TextConfig(corpus=str(path))).fingerprint()
    assert open_corpus(TextConfig(corpus=str(path))).fingerprint() == before
    write(path, "two")
    assert open_corpus(TextConfig(corpus=str(path))).fingerprint() != before
