"""Stores are what the definition says, the same bits for any number of processes and after any kill."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from regard.core.errors import ConfigError, DataError, LimitError, ResourceError
from regard.files.folders import locked_folder
from regard.text.tokenizer import BpeTokenizer, ByteTokenizer
from regard_lab.tasks import TextConfig, build_task
from regard_lab.tasks.base import SPLITS
from regard_lab.tasks.token_store import STORE, TokenStore
from regard_lab.tokens import build, texts
from regard_lab.tokens.build import Reading, _sample
from regard_lab.tokens.plan import plan
from tests.tokens.conftest import contents, write

SOURCE = str(Path(__file__).parents[2] / "src")
KINDS = {"separator": "||", "shard_bytes": 4000}


def literal_split(text: str, holdout: float) -> str:
    """From the definition: the first 64 bits of SHA-256 as a fraction."""
    place = int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)
    return "test" if place < holdout * 2**64 else "valid" if place < 2 * holdout * 2**64 else "train"


def documents(store: TokenStore, split: str) -> list[str]:
    found = []
    for number in range(len(store.facts.shards)):
        for begin, end in store.bounds(number, split):
            found.append(store.tokenizer.decode(store.tokens(number, int(begin), int(end))[0]).strip("\0"))
    return found


def test_every_document_is_there_once_in_the_split_of_its_hash(tmp_path):
    written = write(tmp_path / "corpus")
    store = build(tmp_path / "corpus", tmp_path / "store", holdout=0.2, **KINDS)
    assert len(store.facts.shards) > 4
    for split in SPLITS:
        wanted = sorted(each for each in written if literal_split(each, 0.2) == split)
        assert sorted(documents(store, split)) == wanted
        assert store.amount(split)[:2] == (len(wanted), sum(len(each.encode()) + 2 for each in wanted))
    store.verify()


def test_as_many_processes_as_one_likes_give_the_same_bits(corpus, tmp_path):
    build(corpus, tmp_path / "one", **KINDS)
    build(corpus, tmp_path / "two", processes=2, **KINDS)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_windows_are_those_of_text_in_memory(corpus, tmp_path, monkeypatch):
    """The same documents in the same order: example by example what `Windows` gives."""
    from regard_lab.tasks import stored_windows
    from regard_lab.tasks.text import Windows
    from regard_lab.tasks.token_files import Tokens

    store = build(corpus, tmp_path / "store", holdout=0.1, tokenizer="bpe", vocab_size=300, **KINDS)
    for split in SPLITS:
        ids = [store.tokenizer.document(each).ids for each in documents(store, split)]
        starts = np.cumsum([0, *map(len, ids)])
        wanted = Windows(Tokens(np.concatenate(ids), starts), store.tokenizer, 16)
        for group in (4096, 3):
            monkeypatch.setattr(stored_windows, "GROUP", group)
            found = build_task(TextConfig(corpus=str(tmp_path / "store"), length=16)).examples(split)
            assert len(found) == len(wanted) > 20
            assert found.num_documents == wanted.num_documents
            for index in range(len(wanted)):
                one, two = found[index], wanted[index]
                assert (one.document, one.nbytes) == (two.document, two.nbytes)
                np.testing.assert_array_equal(one.inputs, two.inputs)
                np.testing.assert_array_equal(one.targets, two.targets)
            place, wanted_place = found.place(len(wanted) - 2), wanted.place(len(wanted) - 2)
            np.testing.assert_array_equal(place[0], wanted_place[0])
            assert place[1] == wanted_place[1]


def test_units_of_a_bootstrap_are_bounded(corpus, tmp_path, monkeypatch):
    from regard_lab.tasks import stored_windows

    monkeypatch.setattr(stored_windows, "MOST_UNITS", 7)
    build(corpus, tmp_path / "store", **KINDS)
    examples = build_task(TextConfig(corpus=str(tmp_path / "store"), length=16)).examples("train")
    assert examples.documents > 200
    assert {each.document for each in examples} == set(range(7))


SCRIPT = """
import sys
from regard_lab.tokens import build
if __name__ == "__main__":
    build(sys.argv[1], sys.argv[2], processes=2, separator="||", shard_bytes=4000)
"""


MOMENTS = [
    ("replace", "tokenizer.json"),
    ("replace", "token_store.json"),
    ("unlink", ".token_store.json.*.partial"),
    ("unlink", "00000000.json"),
    ("unlink", "token_build.json"),
]
"""operations that a build is killed before, and the files that they name or remove"""


def test_a_build_may_be_killed_before_any_of_its_last_operations(tmp_path):
    """Once the store is named it is whole, and the same build tidies up what the killed one left."""
    (tmp_path / "a.txt").write_text("".join(f"{number} and more\n" for number in range(400)))
    build(tmp_path / "a.txt", tmp_path / "whole", separator="\n")
    for operation, name in MOMENTS:
        out = tmp_path / f"{operation} {name}"
        assert _killed(tmp_path / "a.txt", out, operation, name)
        if (out / STORE).exists():
            TokenStore.open(out).verify()
        build(tmp_path / "a.txt", out, separator="\n").verify()
        assert contents(out) == contents(tmp_path / "whole")


def _killed(corpus: Path, out: Path, operation: str, name: str) -> bool:
    """A build in a forked process, killed at a moment after the store has begun. Whether it was."""
    process = os.fork()
    if process:
        return os.waitpid(process, 0)[1] == signal.SIGKILL
    function = getattr(os, operation)

    def killing(*paths: Path, **named: object) -> None:
        if Path(paths[-1]).match(name) and (not name.startswith(".") or (out / STORE).exists()):
            os.kill(os.getpid(), signal.SIGKILL)
        function(*paths, **named)

    setattr(os, operation, killing)
    build(corpus, out, separator="\n")
    os._exit(0)


def test_processes_leave_with_the_one_that_began_them(tmp_path):
    """Only the first is killed: otherwise the others would write beside the build that goes on."""
    write(tmp_path / "corpus", 1500)
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "corpus"), str(tmp_path / "store")]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": SOURCE}, start_new_session=True)
    limit = time.monotonic() + 60
    while not [*(tmp_path / "store").glob("*[0-9].json")] and time.monotonic() < limit:
        time.sleep(0.002)
    process.kill()
    process.wait()
    while time.monotonic() < limit:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    pytest.fail("a process of the build is still there")


@pytest.mark.parametrize("change", ["text", "shard", "record"])
def test_what_is_not_what_was_finished_is_written_again(corpus, tmp_path, change):
    whole = build(corpus, tmp_path / "whole", **KINDS)
    name = whole.facts.shards[1].name

    def stop(done: int, count: int, shard: object) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(corpus, tmp_path / "store", progress=stop, **KINDS)
    first = tmp_path / "store" / f"{whole.facts.shards[0].name}.ids"
    written = first.stat().st_mtime_ns
    if change == "text":
        path = sorted((corpus / "deep").glob("*.md"))[0]
        path.write_text(path.read_text(encoding="utf-8").swapcase(), encoding="utf-8")  # of the same size
        build(corpus, tmp_path / "anew", **KINDS)
    else:
        path = tmp_path / "store" / f"{name}.{'ids' if change == 'shard' else 'json'}"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    store = build(corpus, tmp_path / "store", **KINDS)
    store.verify()
    if change != "text":
        assert first.stat().st_mtime_ns == written, "a finished shard was written again"
    assert contents(tmp_path / "store") == contents(tmp_path / ("anew" if change == "text" else "whole"))


def test_a_build_without_a_token_yet_is_begun_anew(tmp_path):
    """Whoever mends what was refused, an option or a file, gives the command again."""
    table = tmp_path / "table.csv"
    table.write_text("text\n" + "".join(f"{number} and more\n" for number in range(400)))
    for wanted in ("bytes", "bpe"):
        options = {"tokenizer": wanted, "vocab_size": 260}
        with pytest.raises(DataError, match="no column 'words'"):
            build(table, tmp_path / wanted, field="words", **options)
        build(table, tmp_path / wanted, field="text", **options)
        build(table, tmp_path / f"{wanted} at once", field="text", **options)
        assert contents(tmp_path / wanted) == contents(tmp_path / f"{wanted} at once")
    table.write_bytes(b"\xff")
    with pytest.raises(DataError):
        build(table, tmp_path / "file")
    table.write_text("text\nto be\n")
    build(table, tmp_path / "file").verify()


def test_a_build_that_goes_on_must_be_the_same(corpus, tmp_path):
    def stop(done: int, count: int, shard: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(corpus, tmp_path / "store", progress=stop, **KINDS)
    with pytest.raises(ConfigError, match=r"begun with holdout=0.05, now 0.1; give the same"):
        build(corpus, tmp_path / "store", holdout=0.1, **KINDS)
    (corpus / "more.txt").write_text("more")
    with pytest.raises(ConfigError, match="begun with corpus="):
        build(corpus, tmp_path / "store", **KINDS)


def test_folders_that_hold_something_are_left_alone(corpus, tmp_path):
    build(corpus, tmp_path / "store")
    with pytest.raises(ConfigError, match="nothing is ever overwritten"):
        build(corpus, tmp_path / "store")
    with pytest.raises(ConfigError, match="something else"):
        build(corpus, corpus)
    (tmp_path / "held").mkdir()
    with locked_folder(tmp_path / "held"), pytest.raises(ResourceError, match="another process"):
        build(corpus, tmp_path / "held")


def test_what_cannot_be_read_is_named(corpus, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="separator"):
        build(corpus / "rows.jsonl", tmp_path / "a", separator="x")
    with pytest.raises(ConfigError, match="field"):
        build(corpus / "deep", tmp_path / "b", field="x")
    with pytest.raises(DataError, match=r"no field 'title'.*--task.field|no field 'title'"):
        build(corpus / "rows.jsonl", tmp_path / "c", field="title")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no file that regard reads"):
        build(tmp_path / "empty", tmp_path / "d")
    monkeypatch.setattr(texts, "MOST_BYTES", 100)
    with pytest.raises(LimitError, match="--separator"):
        build(corpus / "deep" / "parts.txt", tmp_path / "e")
    (corpus / "rows.jsonl").write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(DataError, match=r"rows.jsonl, line 1: no UTF-8"):
        build(corpus, tmp_path / "f", processes=2, **KINDS)


def test_published_tokenizers_tell_the_bytes_of_every_token(corpus, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    from regard.text.pretrained_tokenizer import PretrainedTokenizer

    model = Tokenizer(models.WordLevel({"?": 0, "one": 1, "two": 2, "stop": 3, ".": 4}, "?"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    reader = PretrainedTokenizer(model, 70_000)
    store = build(corpus / "rows.jsonl", tmp_path / "store", tokenizer=reader, shard_bytes=2000, holdout=0.3)
    store.verify()
    assert store.facts.kind.itemsize == 8
    task = build_task(TextConfig(corpus=str(tmp_path / "store"), length=8), tokenizer=reader)
    assert sum(each.nbytes for each in task.examples("train")) == store.amount("train").nbytes
    with pytest.raises(DataError, match="another tokenizer"):
        build_task(TextConfig(corpus=str(tmp_path / "store"), length=8), tokenizer=ByteTokenizer())


def test_a_tokenizer_learns_from_training_documents_alone(corpus):
    """Of every piece a share, in an order that no name decides, and no more than was asked for."""
    planned = plan(corpus, 4000)
    reading = Reading(str(planned.base), None, "||", 0.2)
    every = [*_sample(planned, reading, 1 << 30)]
    assert len(every) > 100
    assert {literal_split(each, 0.2) for each in every} == {"train"}
    assert {*every} == {each for each in reading.texts(p for unit in planned.units for p in unit)
                        if literal_split(each, 0.2) == "train"}  # fmt: skip
    few = [*_sample(planned, reading, 1000)]
    assert 1000 <= sum(len(each.encode()) for each in few) < 1000 + max(len(each.encode()) for each in few)
    assert few == every[: len(few)]
    in_order = [*reading.texts(p for unit in planned.units for p in unit)]
    assert few[0] != next(each for each in in_order if literal_split(each, 0.2) == "train")


def test_a_large_file_has_only_its_share_in_what_a_tokenizer_learns_from(tmp_path):
    (tmp_path / "corpus").mkdir()
    for name in ("a", "b"):
        (tmp_path / "corpus" / f"{name}.txt").write_text("||".join(f"{name} {at} " * 9000 for at in range(60)))
    planned = plan(tmp_path / "corpus", 1 << 30)
    found = [*_sample(planned, Reading(str(planned.base), None, "||", 0.05), 3 << 20)]
    of_a = sum(len(each) for each in found if each[0] == "a")
    assert 0.4 < of_a / sum(map(len, found)) < 0.6


def test_shards_of_another_tokenizer_are_written_again(corpus, tmp_path):
    """Of the same kind and size: what made the tokens is part of what a shard is made of."""
    options = {"tokenizer": "bpe", "vocab_size": 270, **KINDS}

    def stop(done: int, count: int, shard: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(corpus, tmp_path / "store", progress=stop, **options)
    other = BpeTokenizer.train([f"{at} is no {at * 7} and {at + 3} either " for at in range(300)], 270)
    other.save(tmp_path / "store" / "tokenizer.json")
    store = build(corpus, tmp_path / "store", **options)
    found = documents(store, "train")
    assert len(found) > 100
    assert all(literal_split(each, 0.05) == "train" for each in found)


def test_what_a_killed_process_left_of_a_file_is_gone(corpus, tmp_path):
    whole = build(corpus, tmp_path / "whole", **KINDS)

    def stop(done: int, count: int, shard: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(corpus, tmp_path / "store", progress=stop, **KINDS)
    (tmp_path / "store" / f".{whole.facts.shards[2].name}.ids.{7:016x}.partial").write_bytes(b"half")
    build(corpus, tmp_path / "store", **KINDS)
    assert contents(tmp_path / "store") == contents(tmp_path / "whole")


@pytest.mark.parametrize(("length", "units"), [(16, 20), (600, 3)])
def test_a_single_document_is_cut_into_units(tmp_path, length, units):
    (tmp_path / "corpus").mkdir()
    for number in range(400):  # until every split has one
        (tmp_path / "corpus" / "a.txt").write_text("||".join(f"{at + number} " * 300 for at in range(3)))
        texts = (tmp_path / "corpus" / "a.txt").read_text().split("||")
        if {literal_split(each, 0.3) for each in texts} == {*SPLITS}:
            break
    build(tmp_path / "corpus", tmp_path / "store", separator="||", holdout=0.3)
    examples = build_task(TextConfig(corpus=str(tmp_path / "store"), length=length)).examples("train")
    found = [each.document for each in examples]
    assert examples.documents == 1
    assert sorted({*found}) == [*range(min(units, len(examples)))]
    assert found == sorted(found)
    assert examples.num_documents == len({*found})


def test_no_document_of_a_split_is_said(tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "only.txt").write_text("one document " * 9)
    build(tmp_path / "corpus", tmp_path / "store")
    with pytest.raises(DataError, match=r"no document of the (valid|test|train) split"):
        build_task(TextConfig(corpus=str(tmp_path / "store"), length=8))


def test_large_files_of_rows_are_cut_between_lines(tmp_path):
    rows = "".join(f'{{"text": "{"x" * (number % 50)} {number}"}}\n' for number in range(200))
    (tmp_path / "rows.jsonl").write_text(rows)
    store = build(tmp_path / "rows.jsonl", tmp_path / "store", shard_bytes=700)
    assert len(store.facts.shards) == -(-len(rows) // 700)
    assert sum(store.amount(split).documents for split in SPLITS) == 200
    assert Path(tmp_path / "store" / "token_store.json").exists()
