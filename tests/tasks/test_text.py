"""Text tasks: windows cover each document once, token files are written once, too little text is explained."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.core.errors import DataError, ResourceError
from regard.files.writing import locked
from regard.text.tokenizer import BpeTokenizer, ByteTokenizer, load_tokenizer
from regard_lab.tasks import IGNORE, TextConfig, TextTask, build_task
from regard_lab.tasks.text import Windows
from regard_lab.tasks.token_files import Tokens, cache_folder, token_files

SPLITS = ("train", "valid", "test")


@pytest.fixture
def poems(tmp_path: Path) -> Path:
    """Forty documents of different lengths."""
    folder = tmp_path / "poems"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02}.txt").write_text(
            f"诗{number} " + f"明月几时有 the moon {number * 7919} " * (3 + number), encoding="utf-8"
        )
    return folder


def documents_of(windows: Windows) -> list[str]:
    """The documents that the counted targets spell, in the order of the windows."""
    rows: dict[int, list[int]] = {}
    for example in windows:
        rows.setdefault(example.document, []).extend(example.targets[example.targets != IGNORE].tolist())
    return [windows.tokenizer.decode(row).removesuffix("\0") for row in rows.values()]


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 25), min_size=2, max_size=6), length=st.integers(2, 9))
def test_windows_cover_every_document_exactly_once(sizes: list[int], length: int) -> None:
    rng = np.random.default_rng(0)
    rows = [np.concatenate([[0], rng.integers(1, 256, size), [0]]) for size in sizes]
    starts = np.cumsum([0, *map(len, rows)])
    windows = Windows(Tokens(np.concatenate(rows).astype(np.uint8), starts), ByteTokenizer(), length)
    covered: dict[int, list[int]] = {}
    for index in range(len(windows)):
        inputs, targets, document, nbytes, *_ = windows[index]
        assert inputs.shape == targets.shape == (length,)
        assert inputs.dtype == targets.dtype == np.int64
        count = int((targets != IGNORE).sum())
        assert nbytes == count >= 1
        assert (targets[:count] != IGNORE).all()
        assert (inputs[count:] == 0).all()
        row = rows[document]
        at = 1 + len(covered.setdefault(document, []))
        assert list(targets[:count]) == list(row[at : at + count])
        assert list(inputs[:count]) == list(row[at - 1 : at - 1 + count])  # its own document, one step behind
        covered[document].extend(targets[:count])
    assert covered == {document: list(row[1:]) for document, row in enumerate(rows)}
    for index in (-1, len(windows)):
        with pytest.raises(IndexError):
            windows[index]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_splits_are_the_documents_and_disjoint(poems: Path, tmp_path: Path, tokenizer: str) -> None:
    vocab_size = 270 if tokenizer == "bpe" else None
    options = {"tokenizer": tokenizer, "vocab_size": vocab_size, "cache": str(tmp_path / "cache")}
    task = build_task(TextConfig(corpus=str(poems), length=16, holdout=0.1, **options))
    found = {split: documents_of(task.examples(split)) for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [32, 4, 4]
    assert sorted(chain(*found.values())) == sorted(path.read_text(encoding="utf-8") for path in poems.iterdir())
    for split in SPLITS:
        total = sum(example.nbytes for example in task.examples(split))
        assert total == sum(len(text.encode()) + 1 for text in found[split])  # the end mark is one byte
    assert task.vocab_size == (vocab_size or 256)
    other = build_task(TextConfig(corpus=str(poems), length=32, holdout=0.1, cache=str(tmp_path / "cache")), seed=9)
    assert {split: documents_of(other.examples(split)) for split in SPLITS} == found  # whatever length, seed, tokenizer


def test_bpe_is_trained_on_the_training_split_only(
    poems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    train = BpeTokenizer.train
    monkeypatch.setattr(
        BpeTokenizer, "train", lambda texts, size: train((seen.append(text) or text for text in texts), size)
    )
    task = build_task(
        TextConfig(corpus=str(poems), length=16, tokenizer="bpe", vocab_size=270, cache=str(tmp_path / "cache"))
    )
    assert sorted(seen) == sorted(documents_of(task.examples("train")))


def test_one_file_is_resampled_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "novel.txt"
    path.write_text("".join(f"{number}: it was the best of times, the worst of times.\n" for number in range(800)))
    task = build_task(TextConfig(corpus=str(path), length=64, cache=str(tmp_path / "cache")))
    valid = task.examples("valid")
    units = [valid[index].document for index in range(len(valid))]
    assert units == sorted(units)
    assert set(units) == set(range(20))
    assert valid.num_documents == 20
    counts = np.bincount(units)
    assert counts.max() - counts.min() <= 1
    text = b"".join(valid.tokenizer.to_bytes(example.targets[example.targets != IGNORE]) for example in valid)
    whole, part = path.read_text(), text.decode().removesuffix("\0")
    assert 0.89 < whole.index(part) / len(whole) < 0.91
    assert 0.94 < (whole.index(part) + len(part)) / len(whole) < 0.96


def test_bundled_text_is_ready_in_two_seconds(tmp_path: Path) -> None:
    start = time.process_time()
    task = build_task(TextConfig(cache=str(tmp_path)))
    valid = task.examples("valid")
    for index in range(200):
        valid[index]
    assert time.process_time() - start < 2
    sizes = {split: task.examples(split).tokens.ids.size for split in SPLITS}
    assert sum(sizes.values()) == 10_761_493
    assert valid.num_documents == 12
    years = {split: task.examples(split).num_documents for split in SPLITS}
    assert sum(years.values()) == 233


def test_token_files_are_mapped_and_written_once(poems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TextConfig(corpus=str(poems), length=16, cache=str(tmp_path / "cache"))
    first = build_task(config)
    assert isinstance(first.examples("train").tokens.ids, np.memmap)
    assert not first.examples("train").tokens.ids.flags.writeable
    monkeypatch.setattr("regard_lab.tasks.text._read", lambda *_: pytest.fail("read again"))
    again = build_task(config)
    assert again.fingerprint == first.fingerprint
    for one, other in zip(first.examples("test"), again.examples("test"), strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(one, other, strict=True))
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_token_files_are_for_whom_the_umask_lets_read_them(poems: Path, tmp_path: Path) -> None:
    """They had been for one user alone, whatever a shared `--task.cache` was."""
    before = os.umask(0o027)
    try:
        build_task(TextConfig(corpus=str(poems), length=16, cache=str(tmp_path / "cache")))
    finally:
        os.umask(before)
    (folder,) = (tmp_path / "cache").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o640}


@pytest.mark.parametrize(
    "change", [{"length": 17}, {"holdout": 0.2}, {"tokenizer": "bpe", "vocab_size": 270}, {"separator": "moon"}]
)
def test_every_option_that_changes_examples_changes_the_fingerprint(
    poems: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    config = TextConfig(corpus=str(poems), length=16, holdout=0.1, cache=str(tmp_path / "cache"))
    before, after = build_task(config), build_task(replace(config, **change))
    assert after.fingerprint != before.fingerprint
    rows = [[example.inputs.tolist() for example in task.examples("train")] for task in (before, after)]
    assert rows[0] != rows[1]


def test_an_earlier_tokenizer_is_used_and_changes_nothing_else(poems: Path, tmp_path: Path) -> None:
    config = TextConfig(corpus=str(poems), length=16, tokenizer="bpe", vocab_size=280, cache=str(tmp_path / "cache"))
    first = build_task(config)
    first.tokenizer.save(tmp_path / "tokenizer.json")
    again = build_task(config, tokenizer=load_tokenizer(tmp_path / "tokenizer.json"))
    assert again.fingerprint == first.fingerprint
    assert np.array_equal(again.examples("valid")[0].inputs, first.examples("valid")[0].inputs)


def test_two_writers_at_once_leave_one_complete_result(tmp_path: Path) -> None:
    both = threading.Barrier(2)
    found, failed = [], []

    def source() -> tuple[ByteTokenizer, list[tuple[str, str]]]:
        both.wait(10)  # neither finds the other's files
        return ByteTokenizer(), [(split, f"text of {split}") for split in SPLITS]

    def work() -> None:
        try:
            found.append(token_files(tmp_path, "key", source))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert [files.splits["test"].ids.tobytes() for files in found] == [b"\0text of test\0"] * 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]


def test_what_killed_processes_left_of_token_files_goes_and_of_living_ones_stays(tmp_path: Path) -> None:
    dead, other = (tmp_path / f".key.{digit * 16}.partial" for digit in "01")
    dead.mkdir()
    other.mkdir()
    (dead / "train.ids").write_text("half")

    def source() -> tuple[ByteTokenizer, list[tuple[str, str]]]:
        return ByteTokenizer(), [(split, f"text of {split}") for split in SPLITS]

    with locked(other):
        token_files(tmp_path, "key", source)
        assert {path.name for path in tmp_path.iterdir()} == {"key", other.name}
    token_files(tmp_path, "key", source)  # which is there
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_failure_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def full() -> tuple[ByteTokenizer, list[tuple[str, str]]]:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ResourceError, match=r"No space left on device.*XDG_CACHE_HOME"):
        token_files(tmp_path, "key", full)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot write") as error:
        build_task(TextConfig(cache=str(tmp_path / "file" / "cache")))
    assert error.value.exit_code == 6


def test_token_files_of_another_key_are_not_believed(poems: Path, tmp_path: Path) -> None:
    config = TextConfig(corpus=str(poems), length=16, cache=str(tmp_path / "cache"))
    build_task(config)
    folder = next((tmp_path / "cache").iterdir())
    shutil.rmtree(folder)
    (poems / "more.txt").write_text("something else " * 99)
    build_task(config)
    other = next((tmp_path / "cache").iterdir())
    assert other != folder
    shutil.copytree(other, folder)
    (poems / "more.txt").unlink()
    with pytest.raises(DataError, match=f"damaged .they belong to {other.name}.: delete that folder"):
        build_task(config)


@pytest.mark.parametrize("damage", ["truncate", "empty", "meta", "starts", "tokenizer"])
def test_damaged_token_files(poems: Path, tmp_path: Path, damage: str) -> None:
    config = TextConfig(corpus=str(poems), length=16, cache=str(tmp_path / "cache"))
    build_task(config)
    folder = next((tmp_path / "cache").iterdir())
    acts: dict[str, Callable[[], object]] = {
        "truncate": lambda: (folder / "valid.ids").write_bytes((folder / "valid.ids").read_bytes()[:-1]),
        "empty": lambda: (folder / "valid.ids").write_bytes(b""),
        "meta": lambda: (folder / "meta.json").write_text(json.dumps({})),
        "starts": lambda: (folder / "train.starts.npy").write_bytes(b""),
        "tokenizer": lambda: (folder / "tokenizer.json").unlink(),
    }
    acts[damage]()
    with pytest.raises(DataError, match="delete that folder"):
        build_task(config)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_no_flipped_bit_of_token_files_is_trained_on(poems: Path, tmp_path: Path, tokenizer: str) -> None:
    vocab_size = 280 if tokenizer == "bpe" else None
    cache = str(tmp_path / "cache")
    config = TextConfig(corpus=str(poems), length=16, tokenizer=tokenizer, vocab_size=vocab_size, cache=cache)
    wanted = [example.inputs.tolist() for split in SPLITS for example in build_task(config).examples(split)]
    (folder,) = (tmp_path / "cache").iterdir()
    named = 0
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        for bit in range(0, 8 * len(data), max(8 * len(data) // 12, 1) + 1):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            try:
                task = build_task(config)
                assert [example.inputs.tolist() for split in SPLITS for example in task.examples(split)] == wanted
            except DataError as error:
                named += "delete that folder" in str(error)
        path.write_bytes(data)
    assert named > 90


def test_token_files_of_an_earlier_version_are_written_anew(
    poems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TextConfig(corpus=str(poems), length=16, cache=str(tmp_path / "cache"))
    with monkeypatch.context() as earlier:
        earlier.setattr("regard_lab.tasks.text._FILES", "")
        before = build_task(config)
        (old,) = (tmp_path / "cache").iterdir()
        (old / "manifest.json").unlink()
    assert build_task(config).fingerprint == before.fingerprint
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(None) == tmp_path / "regard"
    assert cache_folder("here") == Path("here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_folder(None) == tmp_path / "home" / ".cache" / "regard"


def test_too_little_text_says_how_much_is_missing(poems: Path, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    with pytest.raises(DataError, match=r"takes 5001 tokens .*--task.length to \d+ or less"):
        build_task(TextConfig(corpus=str(poems), length=5000, cache=cache))
    small = tmp_path / "small.txt"
    small.write_text("a small text\n" * 100)
    with pytest.raises(DataError, match=r"longest valid document has \d+ .*larger --task.holdout than 0.05"):
        build_task(TextConfig(corpus=str(small), cache=cache))
    assert isinstance(build_task(TextConfig(corpus=str(small), length=32, cache=cache)), TextTask)
    small.write_text("  \n\n")
    with pytest.raises(DataError, match=r"give longer documents$"):
        build_task(TextConfig(corpus=str(small), cache=cache))
    small.write_text("To be or not to be.\n")
    with pytest.raises(DataError, match=r"longest (valid|test) document has 3 .*--task.length to 2 or less"):
        build_task(TextConfig(corpus=str(small), length=48, cache=cache))
    build_task(TextConfig(corpus=str(small), length=2, cache=cache))
    small.write_text("ab")
    with pytest.raises(DataError, match=r"too small.*\); give longer documents"):
        build_task(TextConfig(corpus=str(small), length=2, cache=cache))


CHILD = """
import sys
from regard_lab.tasks import TextConfig, TextTask, ngram_bits_per_byte
import tokenizers
def peak():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))
config = dict(corpus=sys.argv[1], tokenizer=sys.argv[2], cache=sys.argv[3], length=256)
before = peak()
task = TextTask(TextConfig(**config, vocab_size=300 if sys.argv[2] == "bpe" else None))
made = peak()
if sys.argv[2] == "bytes":
    ngram_bits_per_byte(task, order=3)
print(made - before, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts the memory of a process as Linux tells it")
@pytest.mark.parametrize(("tokenizer", "times", "end", "count"), [("bytes", 3, " ", 80), ("bpe", 6, " ", 200)])
def test_memory_hardly_grows_with_a_file(tmp_path: Path, tokenizer: str, times: int, end: str, count: int) -> None:
    """8 MB in one line, and n-grams beside them; 20 MB for what learns a vocabulary first."""
    draw = np.random.default_rng(0)
    words = ["".join(map(chr, draw.integers(97, 123, 5))) for _ in range(500)]
    path = tmp_path / "text.txt"
    path.write_text((" ".join(words[at] for at in draw.integers(0, 500, 16_666)) + end) * count)
    size = path.stat().st_size
    assert size > 95_000 * count
    child = [sys.executable, "-c", CHILD, str(path), tokenizer, str(tmp_path / "cache")]
    made, counted = map(int, subprocess.run(child, check=True, capture_output=True, text=True).stdout.split())
    assert made < times * size + (16 << 20)
    assert counted < times * size + (128 << 20)


def test_long_work_says_how_far_it_is(
    poems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = count(step=11)
    monkeypatch.setattr("regard_lab.tasks.ticking.time.monotonic", lambda: next(clock))
    build_task(TextConfig(corpus=str(poems), length=16, cache=str(tmp_path / "cache")))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 40
    assert lines[-1].endswith(" tokens written")
