"""Stores on disk: damage is named, and what stays in memory does not grow with them."""

import json
import re
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest

from regard.core.errors import ConfigError, DataError
from regard.files import checksums
from regard.files.checksums import Entry
from regard.text.tokenizer import ByteTokenizer
from regard_lab.tasks import TextConfig, build_task, token_store
from regard_lab.tasks.base import SPLITS
from regard_lab.tasks.token_store import BLOCK_BYTES, KINDS, STORE, Amount, Facts, Shard, TokenStore, token_kind
from regard_lab.tokens import build
from regard_lab.training.data_order import DataOrder
from tests.tokens.conftest import write


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """Never to be changed: `store` is a copy."""
    folder = tmp_path_factory.mktemp("sound")
    write(folder / "corpus", 240)
    build(folder / "corpus", folder / "store", separator="||", shard_bytes=9000, holdout=0.2)
    return folder / "store"


@pytest.fixture
def store(sound, tmp_path) -> Path:
    shutil.copytree(sound, tmp_path / "store")
    return tmp_path / "store"


def read_all(folder: Path) -> None:
    task = build_task(TextConfig(corpus=str(folder), length=16))
    for split in SPLITS:
        for _ in task.examples(split):
            pass


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [0, -1, 1001])
def test_every_flipped_bit_is_found_by_verify_and_by_reading(store, kind, at):
    read_all(store)
    name = f"00000001.{kind}"
    flip(store / name, at)
    with pytest.raises(DataError, match=re.escape(name)):
        TokenStore.open(store).verify()
    with pytest.raises(DataError, match="00000001"):  # with other sums it is the ids that look wrong
        read_all(store)


@pytest.mark.parametrize("name", [STORE, "tokenizer.json"])
def test_flips_in_what_describes_a_store_are_found(store, name):
    for at in range(0, (store / name).stat().st_size, 37):
        sound = (store / name).read_bytes()
        flip(store / name, at)
        with pytest.raises(DataError, match=name):
            TokenStore.open(store)
        (store / name).write_bytes(sound)


def test_missing_cut_and_other_files_are_all_named(store):
    (store / "00000000.ids").unlink()
    (store / "00000001.train").write_bytes((store / "00000001.train").read_bytes()[:-8])
    with pytest.raises(DataError) as caught:
        TokenStore.open(store)
    assert "00000000.ids" in str(caught.value)
    assert "00000001.train" in str(caught.value)


def test_swapped_shards_are_named(store, tmp_path):
    for kind in KINDS:  # whole shards, each sound by itself
        (store / f"00000001.{kind}").rename(tmp_path / "other")
        (store / f"00000002.{kind}").rename(store / f"00000001.{kind}")
        (tmp_path / "other").rename(store / f"00000002.{kind}")
    with pytest.raises(DataError, match=r"00000001[\s\S]*00000002"):
        TokenStore.open(store).verify()
    with pytest.raises(DataError, match=r"0000000[12]"):
        read_all(store)


def test_manifests_that_were_edited_are_refused(store):
    document = json.loads((store / STORE).read_text())
    document["holdout"] = 0.1
    (store / STORE).write_text(json.dumps(document))
    with pytest.raises(DataError, match="differs from its content"):
        TokenStore.open(store)
    for change, wanted in (
        ({"format": 2}, "format 2, and this version reads 1"),
        ({"kind": "windows"}, "and this version reads"),
    ):
        (store / STORE).write_text(json.dumps(checksums.sealed({**document, **change})))
        with pytest.raises(DataError, match=wanted):
            TokenStore.open(store)
    for change in ({"measured": True}, {"vocab_size": 300}):
        (store / STORE).write_text(json.dumps(checksums.sealed({**document, **change, "shards": []})))
        with pytest.raises(DataError, match="another tokenizer than made the tokens"):
            TokenStore.open(store)


def test_what_a_store_decided_is_refused(store):
    for options in ({"holdout": 0.1}, {"separator": "x"}, {"tokenizer": "bpe"}, {"cache": "x"}):
        with pytest.raises(ConfigError, match="decided when it was built"):
            build_task(TextConfig(corpus=str(store), length=8, **options))
    with pytest.raises(DataError, match="too small for windows of 100000"):
        build_task(TextConfig(corpus=str(store), length=100_000))


def anonymous() -> int:
    """Bytes of this process that are in memory and in no file."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        pytest.skip("this system does not tell anonymous from mapped memory")
    return int(found[1]) << 10


def large(folder: Path, documents: int, tokens: int) -> int:
    """A store of one shard, of documents of equal length, written without being built; its bytes."""
    folder.mkdir()
    amounts = {split: Amount(count, count * tokens, count * tokens) for split, count in
               (("train", documents), ("valid", 10), ("test", 10))}  # fmt: skip
    total = sum(each.tokens for each in amounts.values())
    ids = np.resize(np.arange(1, 200, dtype=np.uint8), total)
    starts = np.arange(0, total, tokens, dtype=np.int64)
    bounds = np.stack([starts, starts + tokens], 1)
    ids.tofile(folder / "0.ids")
    blocks = [zlib.crc32(ids[at : at + BLOCK_BYTES].data) for at in range(0, total, BLOCK_BYTES)]
    np.array(blocks, "<u4").tofile(folder / "0.sums")
    for split, cut in zip(SPLITS, np.split(bounds, [documents, documents + 10]), strict=True):
        cut.tofile(folder / f"0.{split}")
    ByteTokenizer().save(folder / "tokenizer.json")
    shard = Shard("0", {kind: Entry.at(folder / f"0.{kind}") for kind in KINDS}, amounts)
    facts = Facts(Entry.at(folder / "tokenizer.json"), 256, False, 0.05, (shard,))
    (folder / STORE).write_text(json.dumps(facts.document()))
    return total + bounds.nbytes


@pytest.mark.parametrize(("documents", "tokens"), [(1_500_000, 16), (50, 1_000_000)])
def test_memory_does_not_grow_with_the_store(tmp_path, documents, tokens):
    """Many documents, or many tokens: reading 2,000 examples in shuffled order takes far less than their size."""
    large(tmp_path / "small", 100, 300)

    def read(folder: Path) -> None:
        examples = build_task(TextConfig(corpus=str(folder), length=8)).examples("train")
        order = DataOrder.of(examples, 40, seed=0)
        for step in range(50):
            for index in order.batch(step):
                assert examples[index].nbytes

    read(tmp_path / "small")  # what is imported and allocated once
    size = large(tmp_path / "large", documents, tokens)
    before = anonymous()
    held = build_task(TextConfig(corpus=str(tmp_path / "large"), length=8)).examples("train")
    order = DataOrder.of(held, 40, seed=0)
    for step in range(50):
        for index in order.batch(step):
            assert held[index].nbytes
    grown = anonymous() - before
    assert size > 45e6
    assert grown < 6e6, f"{grown / 1e6:.1f} MB for a store of {size / 1e6:.0f} MB"


def test_every_block_that_an_example_lies_in_is_checked(tmp_path):
    """One that begins in a sound block and ends in a damaged one, and the other way round."""
    large(tmp_path / "store", 1, 4 * BLOCK_BYTES)
    store = TokenStore.open(tmp_path / "store")
    flip(tmp_path / "store" / "0.ids", 2 * BLOCK_BYTES + 9)
    for first, stop in ((0, 2 * BLOCK_BYTES), (3 * BLOCK_BYTES, 4 * BLOCK_BYTES)):
        assert len(store.tokens(0, first, stop)[0]) == stop - first
    for first, stop in ((0, 2 * BLOCK_BYTES + 1), (3 * BLOCK_BYTES - 1, 4 * BLOCK_BYTES), (0, 4 * BLOCK_BYTES)):
        with pytest.raises(DataError, match=f"behind byte {2 * BLOCK_BYTES}"):
            store.tokens(0, first, stop)


@pytest.mark.parametrize(("vocab_size", "size"), [(256, 1), (257, 2), (1 << 16, 2), ((1 << 16) + 1, 4)])
def test_a_token_takes_the_smallest_number_that_holds_it(vocab_size, size):
    for measured in (False, True):
        kind = token_kind(vocab_size, measured=measured)
        assert kind.itemsize == size + 4 * measured
        ids = np.array([vocab_size - 1]).astype(kind["id"] if measured else kind)
        assert ids[0] == vocab_size - 1


def test_many_shards_take_few_descriptors(sound, monkeypatch):
    monkeypatch.setattr(token_store, "_MAPPED", 6)
    task = build_task(TextConfig(corpus=str(sound), length=8))
    examples = task.examples("train")
    shards = {examples._found(index)[0] for index in range(len(examples))}
    for index in range(0, len(examples), 7):
        assert examples[index].nbytes
    descriptors = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert len(shards) > 5
    assert sum(path.is_relative_to(sound) for path in descriptors) <= 6
