"""Datastores on disk: what is added is there, bit for bit, whatever happens to the process or to the files."""

import errno
import fcntl
import json
import os
import resource
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from regard.core.errors import CheckpointError, ConfigError, InputError, NumericsError, ResourceError, ShapeError
from regard.files import checksums
from regard.files.writing import locked
from regard_lab.retrieval import Datastore, Index, writer
from regard_lab.retrieval.manifest import Manifest
from tests.conftest import at_file
from tests.retrieval.conftest import DIM, VOCAB, entries, filled


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def held(store: Datastore) -> tuple[torch.Tensor, torch.Tensor]:
    pieces = store.pieces()
    keys = [torch.from_numpy(piece.keys).float() for piece in pieces]
    return torch.cat([torch.zeros(0, store.dim), *keys]), store.values(0, len(store))


def all_of(documents, *names):
    chosen = [documents[name] for name in names or documents]
    return torch.cat([keys for keys, _ in chosen]), torch.cat([values for _, values in chosen])


def same(store, documents, *names):
    keys, values = all_of(documents, *names)
    return torch.equal(held(store)[0], keys) and torch.equal(held(store)[1], values)


def test_what_was_added_is_there_in_blocks(store, documents):
    assert same(store, documents)
    assert [block.entries for block in store.manifest.blocks] == [10, 10, 10, 10, 10]
    stats = store.stats()
    assert (stats.entries, stats.dim) == (50, DIM)
    assert (
        stats.nbytes
        == 50 * (2 * DIM + 4)
        == sum(map(len, contents(store.folder).values())) - len((store.folder / "manifest.json").read_bytes())
    )
    assert stats.documents == {"one": 17, "two": 25, "none": 0, "three": 8}
    assert torch.equal(store.values(15, 21), all_of(documents)[1][15:21])


def test_copies_are_counted_together_and_known_by_their_digest_alone(store):
    with store.adding() as adding:
        for digest in ("four", ""):
            adding.begin("one", entries=2, digest=digest)
            adding.append(*entries(2))
    both = Datastore.open(store.folder)
    assert both.stats().documents == {"one": 21, "two": 25, "none": 0, "three": 8}
    assert (store.stats().copies, both.stats().copies) == (0, 0)
    assert Datastore.merge(store.folder.with_name("twice"), [both, both]).stats().copies == 4
    assert (both.own("one"), both.own("four"), both.own("five")) == ([0], [50], [])


def test_a_full_block_is_on_disk_before_its_document_ends(store):
    with store.adding() as adding:
        adding.begin("four", entries=40)
        for count, on_disk in ((4, 5), (31, 8)):
            adding.append(*entries(count))
            assert len(list(store.folder.glob("*.keys"))) == on_disk
        assert adding.entries == 85
        adding.append(*entries(5))


def test_documents_are_added_later_in_blocks_of_their_own(store, documents):
    more = entries(13, 9)
    with store.adding() as adding:
        adding.begin("four", entries=13)
        adding.append(more[0][:4], more[1][:4])
        adding.append(more[0][4:], more[1][4:])
    assert same(Datastore.open(store.folder), {**documents, "four": more})
    assert len(store) == 50  # a value: the one that was opened before is as it was


def test_a_document_is_deleted_and_nothing_else(store, documents):
    left = store.delete("two")
    assert same(left, documents, "one", "none", "three")
    assert same(Datastore.open(store.folder), documents, "one", "none", "three")
    named = {name for block in left.manifest.blocks for name in block.files} | {"manifest.json"}
    assert named == set(contents(store.folder))
    assert same(left.delete("one").delete("none"), documents, "three")
    with pytest.raises(ConfigError, match="no document 'two'"):
        left.delete("two")


def test_who_still_has_it_open_is_told_to_open_it_again(store):
    left = store.delete("two")
    with pytest.raises(CheckpointError, match=r"another one since it was opened \(documents were deleted\); open it"):
        store.search(torch.zeros(1, store.dim), 1)
    (left.folder / f"{left.manifest.blocks[0].name}.keys").unlink()
    with pytest.raises(CheckpointError, match=r"cannot map block .*: No such file"):
        left.search(torch.zeros(1, store.dim), 1)


def test_documents_are_deleted_together_or_not_at_all(store, documents, monkeypatch):
    with pytest.raises(ConfigError, match="no document 'five'"):
        store.delete("one", "five")
    assert same(Datastore.open(store.folder), documents)
    assert same(store.delete("one", "three", "one"), documents, "two", "none")


def test_a_deletion_that_is_given_again_clears_what_a_killed_one_left(store, monkeypatch):
    """Whoever deletes a document wants its keys off the disk."""
    sweeps = iter([Datastore._sweep, None])

    def killed_behind_the_manifest(found: Datastore) -> None:
        sweep = next(sweeps)
        if sweep is None:
            raise KeyboardInterrupt
        sweep(found)

    monkeypatch.setattr(Datastore, "_sweep", killed_behind_the_manifest)
    with pytest.raises(KeyboardInterrupt):
        Datastore.open(store.folder).delete("two")
    monkeypatch.undo()
    left = Datastore.open(store.folder)
    named = {name for block in left.manifest.blocks for name in block.files} | {"manifest.json"}
    assert set(contents(store.folder)) > named
    with pytest.raises(ConfigError, match="no document 'two'"):
        left.delete("two")
    assert set(contents(store.folder)) == named


def test_a_killed_deletion_leaves_the_documents_before(store, documents, monkeypatch):
    def fail(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("regard_lab.retrieval.manifest.save_file", fail)
    with pytest.raises(KeyboardInterrupt):
        store.delete("one")
    monkeypatch.undo()
    assert same(Datastore.open(store.folder), documents)
    assert same(Datastore.open(store.folder).delete("one"), documents, "two", "none", "three")


def test_datastores_are_merged_in_their_order(store, documents, tmp_path):
    other = {"four": entries(12, 7), "five": entries(3, 8)}
    second = filled(tmp_path / "second", other)
    merged = Datastore.merge(tmp_path / "both", [second, store])
    assert same(merged, {**other, **documents})
    merged.verify()
    assert merged.manifest.documents == (*second.manifest.documents, *store.manifest.documents)
    foreign = Datastore.create(tmp_path / "foreign", DIM, vocab_size=VOCAB, origin={"model": "another"})
    with pytest.raises(CheckpointError, match="not made by the same model"):
        Datastore.merge(tmp_path / "wrong", [store, foreign])
    for number, other in enumerate(({"dim": DIM, "vocab_size": VOCAB + 1}, {"dim": DIM + 1, "vocab_size": VOCAB})):
        unlike = Datastore.create(tmp_path / f"unlike {number}", **other, origin=store.manifest.origin)
        with pytest.raises(CheckpointError, match="not made by the same model"):
            Datastore.merge(tmp_path / "wrong", [store, unlike])
    with pytest.raises(ConfigError, match="no datastore to merge"):
        Datastore.merge(tmp_path / "wrong", [])
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize("killed_at", [1, 12, 20, 33, 49])
def test_a_killed_build_goes_on_and_ends_with_the_same_bytes(killed_at, documents, small_blocks, tmp_path):
    """A process that is killed after so many entries leaves whole blocks; the rest is written by the next one."""
    whole = filled(tmp_path / "whole", documents)
    folder, origin = tmp_path / "killed", whole.manifest.origin
    Datastore.create(folder, DIM, vocab_size=VOCAB, origin=origin)

    def add(die_after: int | None) -> list[int]:
        given, stored = 0, []
        with Datastore.open(folder, unfinished=True).adding() as adding:
            for name, (keys, values) in documents.items():
                there = adding.begin(name, entries=len(keys), digest=name)
                stored.append(there)
                for at in range(there, len(keys)):
                    if given == die_after:
                        os.kill(os.getpid(), signal.SIGKILL)
                    adding.append(keys[at : at + 1], values[at : at + 1])
                    given += 1
        return stored

    child = os.fork()
    if not child:
        add(killed_at)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    if killed_at >= 10:
        with pytest.raises(CheckpointError, match=f"interrupted after {killed_at // 10 * 10} entries"):
            Datastore.open(folder)
    assert sum(add(None)) == killed_at // 10 * 10
    assert contents(folder) == contents(whole.folder)


def test_an_interrupted_addition_refuses_other_documents(store):
    more = entries(30, 9)

    def add_too_little() -> None:
        with store.adding() as adding:
            adding.begin("four", entries=30)
            adding.append(more[0][:25], more[1][:25])

    with pytest.raises(ShapeError, match="lacks 5"):
        add_too_little()
    with pytest.raises(CheckpointError, match="give the same"):
        Datastore.open(store.folder)
    unfinished = Datastore.open(store.folder, unfinished=True)
    with pytest.raises(CheckpointError, match="had other documents"), unfinished.adding() as adding:
        adding.begin("five", entries=30)
    with pytest.raises(CheckpointError, match="had more documents"), unfinished.adding():
        pass
    with pytest.raises(CheckpointError, match="still being added to"):
        unfinished.delete("one")


def test_an_interrupted_addition_knows_its_documents_without_digests(store):
    """By the entries that are stored of each: of four all 15, and of five 5 of 30."""
    four, five = entries(15), entries(30)

    def add_too_little() -> None:
        with store.adding() as adding:
            adding.begin("four", entries=15)
            adding.append(*four)
            adding.begin("five", entries=30)
            adding.append(*(x[:10] for x in five))

    with pytest.raises(ShapeError, match="lacks 20"):
        add_too_little()
    unfinished = Datastore.open(store.folder, unfinished=True)
    assert [one.entries for one in unfinished.manifest.documents[-2:]] == [15, 5]
    for count in (9, 31):
        with pytest.raises(CheckpointError, match="had other documents"), unfinished.adding() as adding:
            adding.begin("four", entries=count)
    with unfinished.adding() as adding:
        assert [adding.begin("four", entries=15), adding.begin("five", entries=30)] == [15, 5]
        adding.append(*(x[5:] for x in five))
    assert len(Datastore.open(store.folder)) == 95


@pytest.mark.parametrize("file", ["manifest.json", "00000002.keys", "00000001.values"])
@pytest.mark.parametrize("damage", ["a bit", "its end", "all of it"])
def test_damage_is_found_by_name(store, file, damage):
    path = store.folder / file
    data = bytearray(path.read_bytes())
    if damage == "all of it":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data[: len(data) - 1] if damage == "its end" else data)
    error = ConfigError if (file, damage) == ("manifest.json", "all of it") else CheckpointError
    with pytest.raises(error, match=file.replace(".", r"\.")) as caught:
        Datastore.open(store.folder)
    others = {f"0000000{number}" for number in range(5)} - {file[:8]}
    assert not any(name in str(caught.value) for name in others)


def test_a_manifest_of_a_stranger_names_no_file_elsewhere(store):
    path = store.folder / "manifest.json"
    said = checksums.opened(path.read_bytes())
    said["blocks"][0][0] = "../../outside"
    path.write_text(json.dumps(checksums.sealed(said)))
    with pytest.raises(CheckpointError, match="describes no datastore"):
        Datastore.open(store.folder)


def test_what_another_process_wrote_is_not_added_to(store):
    with store.adding() as adding:
        adding.begin("four", entries=0)
    with pytest.raises(ResourceError, match="meanwhile"), store.adding(as_opened=True):
        pass


def test_a_full_disk_loses_nothing(store, documents, monkeypatch):
    more, written = entries(40, 9), 0

    def full(size: int) -> None:
        nonlocal written
        written += size
        if written > 1500:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def add(store: Datastore) -> int:
        with store.adding() as adding:
            stored = adding.begin("four", entries=40)
            adding.append(more[0][stored:], more[1][stored:])
        return stored

    at_file(monkeypatch, full)
    with pytest.raises(ResourceError, match="No space left on device"):
        add(store)
    monkeypatch.undo()
    monkeypatch.setattr(writer, "BLOCK_BYTES", 10 * DIM * 2)
    assert add(Datastore.open(store.folder, unfinished=True)) == 10
    assert same(Datastore.open(store.folder), {**documents, "four": more})


def test_what_a_living_process_adds_to_is_read_as_it_was(store, documents):
    """And what one builds is not called interrupted; after a kill both are."""

    def killed() -> None:
        with store.adding() as adding:
            adding.begin("four", entries=41)
            adding.append(*entries(40, 9))
            beside = Datastore.open(store.folder)
            assert same(beside, documents)
            with pytest.raises(ResourceError, match="another process is writing it"):
                Datastore.open(store.folder, unfinished=True)
            with pytest.raises(ResourceError, match="another process or thread is writing it"):
                beside.delete("one")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed()
    with pytest.raises(CheckpointError, match="interrupted after 90 entries"):
        Datastore.open(store.folder)
    building = Datastore.create(store.folder.with_name("new"), DIM, vocab_size=VOCAB, unfinished=True)
    with building.adding(), pytest.raises(ResourceError, match="another process is writing it"):
        Datastore.open(building.folder)


def test_readers_of_an_interrupted_addition_neither_hinder_it_nor_each_other(store, documents, monkeypatch):
    """It is called interrupted beside another reader, and whole if it ends while it is opened."""
    more, read = entries(15, 9), Manifest.read

    def add(count: int) -> None:
        with Datastore.open(store.folder, unfinished=True).adding() as adding:
            stored = adding.begin("four", entries=15)
            adding.append(*(x[stored:count] for x in more))

    def late(folder: Path) -> Manifest:
        found = read(folder)
        monkeypatch.setattr(Manifest, "read", read)
        add(15)
        return found

    with pytest.raises(ShapeError, match="lacks 3"):
        add(12)
    with locked(store.folder, fcntl.LOCK_SH), pytest.raises(CheckpointError, match="interrupted after 60 entries"):
        Datastore.open(store.folder)
    monkeypatch.setattr(Manifest, "read", late)
    assert same(Datastore.open(store.folder), {**documents, "four": more})


@pytest.mark.parametrize("end", ["keys", "values"])
def test_damage_gets_no_new_checksums(store, tmp_path, end):
    """Whatever happened to a file since the datastore was opened: what is copied is compared with its SHA-256."""
    more = filled(tmp_path / "more", {"more": entries(5)})
    damaged = store.folder / f"{store.manifest.blocks[1].name}.{end}"
    data = bytearray(damaged.read_bytes())
    data[7] ^= 16
    damaged.write_bytes(data)
    for copied in (
        lambda: store.delete("two"),
        lambda: Datastore.merge(tmp_path / "both", [more, store]),
        lambda: Index(store, "flat"),
    ):
        with pytest.raises(CheckpointError, match=f"{damaged.name} is damaged"):
            copied()
    assert Datastore.open(store.folder, checked=False).manifest == store.manifest


def test_what_makes_no_sense_is_refused(store, tmp_path):
    keys, values = entries(3)
    with pytest.raises(ConfigError, match="exists"):
        Datastore.create(store.folder, DIM, vocab_size=VOCAB)
    with pytest.raises(ConfigError, match="at least 1"):
        Datastore.create(tmp_path / "new", 0, vocab_size=VOCAB)
    with pytest.raises(ConfigError, match="is no datastore"):
        Datastore.open(tmp_path)
    with store.adding() as adding:
        adding.begin("four", entries=3)
        with pytest.raises(ShapeError, match=f"keys must be \\(entries, {DIM}\\)"):
            adding.append(keys[:, 1:], values)
        for outside in (values * 0 + VOCAB, values * 0 - 1):
            with pytest.raises(InputError, match="from 0 to 10"):
                adding.append(keys, outside)
        with pytest.raises(NumericsError, match="float16 does not hold"):
            adding.append(keys * 1e6, values)
        with pytest.raises(ShapeError, match="lacks 3"):
            adding.begin("five", entries=1)
        with pytest.raises(ShapeError, match="3 entries more"):
            adding.append(keys.repeat(2, 1), values.repeat(2))
        adding.append(keys, values)
    assert len(Datastore.open(store.folder)) == 53


def test_a_merge_that_was_interrupted_goes_on(store, documents, tmp_path, monkeypatch):
    """To the same bytes, from within a block of a source; one of other datastores is refused."""
    more = filled(tmp_path / "more", {"more": entries(33, 9)})
    whole = Datastore.merge(tmp_path / "whole", [more, store])
    written = 0

    def killed(size: int) -> None:
        nonlocal written
        written += 1
        if written > 14:
            raise KeyboardInterrupt

    with monkeypatch.context() as early:
        at_file(early, killed)
        with pytest.raises(KeyboardInterrupt):
            Datastore.merge(tmp_path / "both", [more, store])
    assert [one.entries for one in Datastore.open(tmp_path / "both", unfinished=True).manifest.documents] == [33, 7]
    with pytest.raises(CheckpointError, match="give the same regard knn build or regard knn merge again"):
        Datastore.open(tmp_path / "both")
    with pytest.raises(CheckpointError, match="had other documents"):
        Datastore.merge(tmp_path / "both", [store, more])
    Datastore.merge(tmp_path / "both", [more, store])
    for path in whole.folder.iterdir():
        assert (tmp_path / "both" / path.name).read_bytes() == path.read_bytes()
    with pytest.raises(ConfigError, match="exists"):
        Datastore.merge(tmp_path / "both", [store, more])
    with pytest.raises(ConfigError, match="exists"):
        Datastore.merge(store.folder, [more])
    Datastore.create(tmp_path / "foreign", DIM, vocab_size=VOCAB, origin={"model": "another"}, unfinished=True)
    with pytest.raises(CheckpointError, match="of another model that was interrupted"):
        Datastore.merge(tmp_path / "foreign", [store, more])


def test_an_addition_that_was_interrupted_is_no_merge(store, tmp_path):
    more = filled(tmp_path / "more", {"more": entries(33, 9)})
    with suppress(KeyboardInterrupt), store.adding() as adding:
        adding.begin("more", entries=33, digest="more")
        adding.append(*(x[:20] for x in entries(33, 9)))
        raise KeyboardInterrupt
    with pytest.raises(ConfigError, match="exists"):
        Datastore.merge(store.folder, [more])


def test_more_blocks_than_descriptors_are_read(tmp_path, small_blocks):
    """60 blocks and room for 20 open files; without any room it is said, and is no damage."""
    store = filled(tmp_path / "many", {"a": entries(600)})
    assert len(store.manifest.blocks) == 60
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, most))
        found = Datastore.open(store.folder).search(entries(600)[0][:3], 1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
        with pytest.raises(ResourceError, match="Too many open files"):
            store.pieces()
        with pytest.raises(ResourceError, match="Too many open files"):
            store.verify()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, most))
    assert found.ids[:, 0].tolist() == [0, 1, 2]


def test_no_room_for_a_map_is_no_damage(store, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("unable to mmap 120 bytes: Cannot allocate memory (12)")

    monkeypatch.setattr(torch, "from_file", full)
    with pytest.raises(ResourceError, match="cannot map block 00000000: Cannot allocate memory"):
        store.pieces()


def test_a_folder_that_cannot_be_written_is_named(store, monkeypatch):
    """With a block of a killed process in it, which would be removed."""
    (store.folder / "00000099.keys").write_bytes(b"")

    def refused(path: Path, **_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(ResourceError, match=r"cannot write .*00000099\.keys: Read-only file system"):
        store.delete("one")


def test_files_of_somebody_else_stay(store):
    """Whatever they are called; what is called as blocks are, and is in no manifest, was left by a killed process."""
    kept = ("my-ssh.keys", "company.values", "1.keys", ".mine.keys.partial", "00000001.keys.bak")
    for name in kept:
        (store.folder / name).write_text("x")
    (store.folder / "dir.keys").mkdir()
    (store.folder / "00000099.values").mkdir()
    left = ("00000077.keys", f".00000078.keys.{'0' * 16}.partial", f".ivf.json.{'1' * 16}.partial")
    for name in left:
        (store.folder / name).write_text("x")
    store.delete("one")
    there = {path.name for path in store.folder.iterdir()}
    assert there >= {*kept, "dir.keys", "00000099.values"}
    assert not there & set(left)


def test_what_a_kill_left_of_a_first_block_is_in_nobodys_way(tmp_path):
    """No manifest names it. Blocks that are whole are not taken for that: somebody may have lost the manifest."""
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / f".00000000.keys.{'0' * 16}.partial").write_text("x")
    filled(folder, {"a": entries(3)})
    assert {path.name for path in folder.iterdir()} == {"manifest.json", "00000000.keys", "00000000.values"}
    (folder / "manifest.json").unlink()
    with pytest.raises(ConfigError, match="exists; choose another name"):
        Datastore.create(folder, DIM, vocab_size=VOCAB)


def test_what_was_built_in_other_windows_is_told_apart_from_another_model(store, documents, tmp_path):
    def built(name: str, **origin: str) -> Datastore:
        return Datastore.create(tmp_path / name, DIM, vocab_size=VOCAB, origin={"model": "a", **origin})

    short, long = built("short", length="16"), built("long", length="32")
    with pytest.raises(CheckpointError, match=r"long was built in windows of 32 tokens and .*short of 16"):
        Datastore.merge(tmp_path / "merged", [short, long])
    with pytest.raises(CheckpointError, match="were not made by the same model"):
        Datastore.merge(tmp_path / "merged", [short, built("other", length="32", tokenizer="b")])
    with pytest.raises(CheckpointError, match="was built in windows of 16 tokens, not 32: give --length 16"):
        short.require_origin({"model": "a", "length": "32"}, DIM)
