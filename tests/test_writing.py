"""Files under their names: whole, of one writer, and nothing beside them that a dead process left."""

import fcntl
import os
import re
import signal
import threading
from pathlib import Path

import pytest

from regard.core.errors import ConfigError, ResourceError
from regard.files.writing import is_partial, locked, new_file, require_target, save_file


def test_the_last_of_two_writers_wins(tmp_path):
    """Each has a file of its own, so that neither meets the other's half."""
    target = tmp_path / "report[1].html"
    with new_file(target) as slow:
        slow.write(b"slow, ")
        save_file(target, b"fast")
        assert target.read_bytes() == b"fast"
        slow.write(b"and last")
    assert target.read_bytes() == b"slow, and last"
    assert list(tmp_path.iterdir()) == [target]


def test_many_writers_of_one_file(tmp_path):
    target, failed = tmp_path / "file", []

    def write(letter: bytes) -> None:
        try:
            for _ in range(50):
                save_file(target, letter * 5000)
        except ResourceError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found = target.read_bytes() if target.exists() else b"a" * 5000
        assert found in {letter * 5000 for letter in (b"a", b"b", b"c")}
    assert not failed
    assert list(tmp_path.iterdir()) == [target]


def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path):
    process = os.fork()
    if process == 0:
        with new_file(tmp_path / "file") as file:
            file.write(b"half")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    (left,) = tmp_path.iterdir()
    assert is_partial(left)
    (tmp_path / ".mine.partial").touch()
    save_file(tmp_path / "other", b"")
    assert {path.name for path in tmp_path.iterdir()} == {"other", ".mine.partial"}


def test_an_error_leaves_what_was_there(tmp_path):
    save_file(tmp_path / "file", b"before")

    def half():
        with new_file(tmp_path / "file") as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        half()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]
    with pytest.raises(ResourceError, match=r"cannot write .*file/below: Not a directory"):
        save_file(tmp_path / "file" / "below", b"")


@pytest.mark.parametrize("move", [lambda path: path.rename(path.with_name("other")), Path.unlink])
def test_a_lock_that_went_elsewhere_holds_nothing(tmp_path, monkeypatch, move):
    """It was renamed, or removed, after it was opened."""
    flock, path = fcntl.flock, tmp_path / "file"
    path.touch()

    def moving(descriptor, how):
        flock(descriptor, how)
        move(path)

    monkeypatch.setattr(fcntl, "flock", moving)
    with pytest.raises(BlockingIOError), locked(path):
        pass


def test_where_a_result_cannot_be_written_is_known_before_the_work(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for path, kind, error in (
        ("file/new", {}, ResourceError),
        ("file/below/new", {"folder": True}, ResourceError),
        ("n" * 300, {}, ResourceError),
        ("/proc/self/new", {}, ResourceError),
        ("folder", {}, ConfigError),
        ("pipe", {}, ConfigError),
        ("file", {"folder": True}, ConfigError),
        ("file", {"new": True}, ConfigError),
        ("folder", {"folder": True, "new": True}, ConfigError),
    ):
        with pytest.raises(error, match=re.escape(path)):
            require_target(tmp_path / path, **kind)
    for path, kind in (("a/b/new", {"new": True}), ("file", {}), ("folder", {"folder": True})):
        require_target(tmp_path / path, **kind)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder", "pipe"}
