"""Files with a text in every row: what is read, and what is wrong on which line."""

import csv
import json
import sys
from pathlib import Path

import pytest

from regard.core.errors import DataError, UnsupportedError
from regard_lab.tasks.tables import rows, text_in

COLUMNS = {"text": "--task.field"}


def texts(path: Path) -> list[str]:
    return [text_in(row, "text", "--task.field") for row in rows(path, COLUMNS)]


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_csv_is_that_of_rfc_4180(tmp_path: Path) -> None:
    wanted = ["plain", 'a "word", quoted', "two\nlines", "two\r\nlines", "", " spaces ", "字\u2028字"]
    with (tmp_path / "a.csv").open("w", encoding="utf-8-sig", newline="") as file:  # with a byte order mark
        writer = csv.writer(file)
        writer.writerows([["id", "text"], *([at, text] for at, text in enumerate(wanted))])
    assert texts(tmp_path / "a.csv") == wanted
    blank = "text,id\r\n\r\none,1\r\n\r\n\r\ntwo,2\r\n\r\n"
    found = list(rows(written(tmp_path / "b.csv", blank), COLUMNS))
    assert [row.values["text"] for row in found] == ["one", "two"]
    assert [row.where.rpartition(" ")[2] for row in found] == ["3", "6"]


def test_lines_are_counted_by_the_file_and_not_by_the_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", 'text,id\n"one\nand\nmore",1\ntwo,2\n"three\n3",3,4\n')
    with pytest.raises(DataError, match=r"a\.csv, line 6: 3 cell\(s\), and the header has 2"):
        texts(path)


def test_a_long_cell_is_a_text_and_the_limit_of_the_process_stays(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    long = "word, " * (10 * (1 << 20) // 6)
    assert texts(written(tmp_path / "a.csv", f'text\n"{long}"\nshort\n')) == [long, "short"]
    assert csv.field_size_limit() == limit
    with pytest.raises(DataError, match="line 2"):
        texts(written(tmp_path / "b.csv", f'text\n"{long}\n'))
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"a\.csv is empty: give a header such as text"),
        ("\n\n", r"a\.csv is empty"),
        ("text\n", "has a header and nothing below it"),
        ("body,label\na,b\n", r"line 1: no column 'text'; columns: 'body', 'label'; choose one with --task\.field"),
        ("\n\nbody\na\n", "line 3: no column 'text'"),
        ("text;label\na;b\n", "line 1: no column 'text'; columns: 'text;label'"),
        ("text,text\na,b\n", "line 1: 2 columns have the name 'text'"),
        ("text,label\na\n", r"line 2: 1 cell\(s\), and the header has 2"),
        ('text\na\n"b\nc\n', r"lines 3 to 4: no CSV: unexpected end of data; quotes come in pairs"),
        ('text\n"a"b\n', "line 2: no CSV: "),
        (b"text\na\ncaf\xe9\n", "line 3: no UTF-8: byte 0xe9 at byte 4 .*iconv"),
        (b"text\na\0\n", "line 2: binary, with a zero byte at byte 2"),
    ],
)
def test_malformed_csv(tmp_path: Path, content: bytes | str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        texts(written(tmp_path / "a.csv", content))


def test_json_lines_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert texts(written(tmp_path / "A.JSONL", '\ufeff{"text": "a"}\n\n{"text": "b", "id": 1}')) == ["a", "b"]


def test_parquet_is_refused_by_name_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnsupportedError, match=r"pip install 'regard\[parquet\]', or give \.csv or \.jsonl"):
        texts(written(tmp_path / "a.parquet", b"PAR1"))


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    wanted = [f"text {at}\n字" for at in range(2500)]
    parquet.write_table(pyarrow.table({"id": list(range(2500)), "text": wanted}), tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet") == wanted
    parquet.write_table(pyarrow.table({"text": ["a", None]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet, row 2: field 'text' holds NoneType, not text"):
        texts(tmp_path / "b.parquet")
    parquet.write_table(pyarrow.table({"body": ["a"]}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet: no column 'text'; columns: 'body'"):
        texts(tmp_path / "c.parquet")
    parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match="has no rows"):
        texts(tmp_path / "d.parquet")
    for name, damaged in {"e": (tmp_path / "a.parquet").read_bytes()[:-200], "f": b"PAR1", "g": b""}.items():
        with pytest.raises(DataError, match=f"{name}.parquet is damaged, or no .parquet file"):
            texts(written(tmp_path / f"{name}.parquet", damaged))
    with pytest.raises(DataError, match="cannot read"):
        texts(tmp_path / "absent.parquet")


@pytest.mark.parametrize("row", [{"text": None}, {"text": ["a"]}, {"text": 1.5}])
def test_what_is_no_text(tmp_path: Path, row: dict[str, object]) -> None:
    with pytest.raises(DataError, match=r"line 1: field 'text' holds .*, not text; choose another"):
        texts(written(tmp_path / "a.jsonl", json.dumps(row)))
