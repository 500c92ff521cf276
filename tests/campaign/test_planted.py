"""Defects that are planted in what the campaign attacks: each part sees its own, and nothing where there is none."""

import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from evidence.campaign import children, damage, equal, faults, fuzz, hygiene, kills, log, page, parts
from evidence.campaign.kills import Scene
from evidence.campaign.works import Work
from regard.core.errors import ConfigError
from regard.testing.inputs import Subject
from tests.mutants import toys

# Comparisons


def test_a_file_beside_them_and_nothing_to_compare_are_seen(tmp_path):
    for name in ("whole", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_bytes(b"same")
    (tmp_path / "other" / "b").write_bytes(b"")
    assert equal.folders(tmp_path / "other", tmp_path / "whole") == ["b is beside them"]
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="no file to compare"):
        equal.folders(tmp_path / "other", tmp_path / "none")


def test_single_files_are_compared(tmp_path):
    """Such as exported weights."""
    (tmp_path / "a").write_bytes(b"same")
    (tmp_path / "b").write_bytes(b"sane")
    assert equal.folders(tmp_path / "a", tmp_path / "a") == []
    assert equal.folders(tmp_path / "b", tmp_path / "a") == ["b"]
    assert equal.folders(tmp_path / "c", tmp_path / "a") == ["c"]


# Kills and faults


def _sound(place: Path) -> int:
    """Writes beside it and renames."""
    (place / ".file.partial").write_bytes(b"0123456789")
    os.replace(place / ".file.partial", place / "run" / "file")
    return 0


def _half(place: Path) -> int:
    """What is there is taken for whole."""
    if not (place / "run" / "file").exists():
        (place / "run" / "file").write_bytes(b"0123456789")
    return 0


def _numbered(place: Path) -> int:
    """What a killed process left is nobody's."""
    partial = place / f".file.{os.getpid()}.partial"
    partial.write_bytes(b"0123456789")
    os.replace(partial, place / "run" / "file")
    return 0


def _silent(place: Path) -> int:
    """An error of the disk is nobody's business."""
    try:
        return _sound(place)
    except OSError:
        return 0


def _named(place: Path) -> int:
    try:
        return _sound(place)
    except OSError as error:
        os.write(2, f"regard: {error.strerror}\n".encode())
        return 6


def _wordless(place: Path) -> int:
    try:
        return _sound(place)
    except OSError:
        return 6


class Acted(Scene):
    """Of a function in place of a command."""

    def __init__(self, folder: Path, function: Callable[[Path], int]) -> None:
        self.work = Work("acted", lambda place: (), "run", equal.folders)
        self.folder, self.function, self.seconds = folder, function, 0.05
        (folder / "in").mkdir(parents=True)
        self.whole = self.place("whole")
        assert _sound(self.whole) == 0
        self.operations = ["open", "write", "rename run/file"]

    def place(self, name: str) -> Path:
        (self.folder / name / "run").mkdir(parents=True)
        return self.folder / name

    def go_on(self, place: Path, **options: object) -> children.Ended:
        return children.call(lambda: self.function(place), place, **options)


@pytest.mark.parametrize(
    ("function", "at", "wanted"),
    [
        (_sound, 2, "same bits"),
        (_sound, 9, "was done before it was killed"),
        (_half, 2, "file"),
        (_numbered, 2, "left: .file."),
        (lambda place: _sound(place) if (place / ".file.partial").exists() else 3, 2, "exit code 3"),
    ],
)
def test_what_a_kill_leaves_is_seen(tmp_path, monkeypatch, function, at, wanted):
    monkeypatch.setattr(kills, "_moments", lambda scene, seed: [("operation", at)])
    found = kills._case(Acted(tmp_path, function), 0)
    assert found.defect is (wanted not in ("same bits", "was done before it was killed"))
    assert wanted in found.what


def test_what_hangs_is_no_kill(tmp_path, monkeypatch):
    monkeypatch.setattr(kills, "_moments", lambda scene, seed: [("operation", 9)])
    monkeypatch.setattr(Acted, "go_on", lambda self, place, **options: children.call(signal.pause, place, seconds=0.2))
    found = kills._case(Acted(tmp_path, _sound), 0)
    assert found.defect
    assert "hung" in found.what
    assert found.counts == {"kills": 0}


@pytest.mark.parametrize(
    ("function", "wanted"),
    [(_named, None), (_silent, "run is missing"), (_half, "a traceback"), (_wordless, "does not say")],
)
def test_what_a_fault_does_is_seen(tmp_path, monkeypatch, function, wanted):
    scene = Acted(tmp_path, function)
    if wanted == "run is missing":  # and is still so when it is given again
        monkeypatch.setattr(scene, "finished", lambda place: (["run is missing"], None))
    found = faults._refused(scene, 28, False, 1)
    assert found.defect is (wanted is not None), found
    assert wanted is None or wanted in found.what


def test_an_error_without_a_word_is_none_of_a_fault(tmp_path):
    """Also where no text is asked for."""
    scene = Acted(tmp_path, _sound)
    wordless = children.Ended(6, "", "", 0.1, 0.1, 0)
    found = faults._judged(scene, scene.place("case"), wordless, "no home", codes=(6,))
    assert found.defect
    assert "without an error" in found.what


@pytest.mark.parametrize(
    ("code", "said", "wanted"),
    [
        (143, "regard train: interrupted; nothing was kept\n", None),
        (143, "more\ntrain: SIGTERM: saved at step 3; continue with --resume\n", None),
        (143, "", "without a word"),
        (143, "train: step 3  loss 5.1\n", "without a word"),
        (-signal.SIGTERM, "", "exit code -15"),
        (130, "regard train: interrupted; nothing was kept\n", "exit code 130"),
    ],
)
def test_a_signal_that_ends_a_command_without_a_word_is_seen(tmp_path, code, said, wanted):
    """And one that ends it with another exit code, as where nobody answers it."""
    scene = Acted(tmp_path, _sound)
    stopped = children.Ended(code, "", said, 0.1, 0.1, 0)
    scene.finished = lambda place: ([], stopped)  # type: ignore[method-assign]
    found = faults._judged(scene, scene.place("case"), stopped, "a signal", codes=faults._CODES[signal.SIGTERM])
    assert found.defect is (wanted is not None)
    assert (wanted or "named, then the same bits") in found.what


def test_a_limit_of_memory_is_met_on_the_way(tmp_path):
    """By what the command needs, beside what its parent has."""

    def takes() -> int:
        # Beside these an arena of the allocator, 64 MiB, is little.
        return len([bytearray(1 << 25) for _ in range(8)]) & 0

    for share in (0.1, 0.4, 0.7):
        assert children.call(takes, tmp_path, memory=int(share * (8 << 25))).traceback
    assert children.call(takes, tmp_path, memory=16 << 25).code == 0


# Damage


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("", "another result"),
        ("Run: run", "another result"),  # which it says of a sound one too
        ("run/it.txt is damaged; going on without it\nRun: run", "goes on without it"),
    ],
)
def test_a_damaged_file_that_changes_a_result_is_seen(tmp_path, monkeypatch, said, wanted):
    def run(subject: object, place: Path, words: object) -> tuple[children.Ended, str]:
        text = (place / "run" / "it.txt").read_text(errors="replace")
        return children.Ended(0, "", "Run: run" if text == "sound " * 9 else said, 0.1, 0.1, 0), text

    base = tmp_path / "base" / "run"
    base.mkdir(parents=True)
    (base / "it.txt").write_text("sound " * 9)
    subject = damage.Subject(True, (), (("info", "run"),), ("run/*",))
    monkeypatch.setattr(damage, "_run", run)
    monkeypatch.setattr(damage, "_prepare", lambda subject, base, more=(): None)
    monkeypatch.setattr(damage.broken, "WAYS", {"text": lambda path, draw: path.write_text("other")})
    monkeypatch.setitem(damage.SUBJECTS, "planted", subject)
    found = damage.cases("planted", tmp_path)(0)
    assert wanted in found.what
    assert found.defect is (wanted == "another result")


# Bad input


def _raises() -> str:
    raise ValueError("planted")


def _dies() -> str:
    os._exit(9)


def _slow() -> str:
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    return "accepted"


def _large() -> str:
    return str(len(bytearray(3 << 30)))


@pytest.mark.parametrize(
    ("call", "wanted"),
    [(_raises, "ValueError: planted"), (_dies, "died, 9"), (_slow, "took 0.3 s"), (_large, "MemoryError")],
)
def test_an_input_that_no_caller_should_see_through_is_seen(tmp_path, monkeypatch, call, wanted):
    """One of twenty."""
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    calls = iter([*[lambda: "accepted"] * 12, call, *[lambda: "accepted"] * 7])
    found = fuzz._case("planted", lambda draw: next(calls), tmp_path, 0)
    assert found.defect
    assert wanted in found.what
    assert found.counts["inputs"] == (12 if call is _dies else 20)


# Guests


class Forked(toys.ToyDense):
    """Computes something else in another process."""

    mine = os.getpid()

    def attend(self, q, k, v, call):
        got = super().attend(q, k, v, call)
        return got._replace(values=got.values + (os.getpid() != Forked.mine))


class Sharing(toys.ToyDense):
    """Keeps what it was given where every thread finds it."""

    def attend(self, q, k, v, call):
        Sharing.kept = q
        time.sleep(0.002)
        return super().attend(Sharing.kept, k, v, call)


KEPT: list[list[torch.Tensor]] = []


class Keeping(toys.ToyDense):
    """Keeps every call."""

    def attend(self, q, k, v, call):
        KEPT.append([q.sum()])
        return super().attend(q, k, v, call)


class Filtering(toys.ToyDense):
    """Silences warnings for good."""

    def attend(self, q, k, v, call):
        warnings.simplefilter("ignore", category=type(f"Of{time.time_ns()}", (UserWarning,), {}))
        return super().attend(q, k, v, call)


class Drawing(toys.ToyDense):
    """Draws from everybody's numbers."""

    def attend(self, q, k, v, call):
        torch.rand(1)
        return super().attend(q, k, v, call)


class Setting(toys.ToyDense):
    """Sets something for everybody at its first call, once and for all."""

    def attend(self, q, k, v, call):
        torch.set_float32_matmul_precision("high")
        return super().attend(q, k, v, call)


class Exporting(toys.ToyDense):
    """Leaves a variable in the environment."""

    def attend(self, q, k, v, call):
        os.environ["CAMPAIGN_PLANTED"] = "1"
        return super().attend(q, k, v, call)


HOARD = bytearray()


class Hoarding(toys.ToyDense):
    """Keeps bytes of every call, in a single object."""

    def attend(self, q, k, v, call):
        HOARD.extend(os.urandom(1 << 18))
        return super().attend(q, k, v, call)


class Told(toys.ToyDense):
    """Computes what only this process was told."""

    more = 0.0

    def attend(self, q, k, v, call):
        got = super().attend(q, k, v, call)
        return got._replace(values=got.values + Told.more)


class Greedy(toys.ToyDense):
    """Takes memory and time before it refuses a size."""

    def setup(self):
        if self.heads.max_length == hygiene.HUGE:
            torch.ones(hygiene._peak() // 4)
            _slow()
            raise ConfigError("no such size")


class Wordless(toys.ToyDense):
    """Refuses a size without a word."""

    def setup(self):
        if self.heads.max_length == hygiene.HUGE:
            raise ConfigError("")


class Raw(toys.ToyDense):
    """Takes any size for a number."""

    def setup(self):
        if self.heads.max_length == hygiene.HUGE:
            raise IndexError("no such size")


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("check", "guest", "wanted"),
    [
        (hygiene._threads, Sharing, "gave other bits"),
        (hygiene._fork, Forked, "other bits"),
        (hygiene._global_state, Filtering, "warnings"),
        (hygiene._global_state, Drawing, "torch's random state"),
        (hygiene._global_state, Setting, "precision of products"),
        (hygiene._global_state, Exporting, "environment"),
        (hygiene._spawn, Told, "other bits"),
        (lambda subject, folder: hygiene._steps(subject, folder, steps=80), Keeping, "more objects"),
        (lambda subject, folder: hygiene._steps(subject, folder, steps=80), Hoarding, "KiB more after 80 steps"),
        (hygiene._limits, Raw, "heads.max_length=1099511627776: IndexError"),
        (hygiene._limits, Greedy, "MiB"),
        (hygiene._limits, Greedy, "s; heads.max_length=1099511627776: took"),
        (hygiene._limits, Wordless, "heads.max_length=1099511627776: an error without a message"),
    ],
)
def test_a_guest_that_misbehaves_is_seen(tmp_path, monkeypatch, check, guest, wanted):
    Forked.mine = os.getpid()
    monkeypatch.setattr(Told, "more", 1.0)
    monkeypatch.setattr(hygiene, "SECONDS", 0.2)
    monkeypatch.setenv("CAMPAIGN_PLANTED", "0")
    precision = torch.get_float32_matmul_precision()
    assert check(Subject(toys.ToyDense, {}), tmp_path) == ""
    try:
        with warnings.catch_warnings():
            assert wanted in check(Subject(guest, {}), tmp_path)
    finally:
        torch.set_float32_matmul_precision(precision)


@pytest.mark.parametrize("script", ["raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"])
def test_a_new_process_that_says_nothing_is_seen(tmp_path, monkeypatch, script):
    monkeypatch.setattr(hygiene, "_READ", script)
    assert "exit code" in hygiene._spawn(Subject(toys.ToyDense, {}), tmp_path)


# The page


def test_the_page_says_what_was_not_made_and_counts_a_case_once():
    batch = log.Batch("hygiene", "threads", 0, "python -m evidence.campaign")
    for seed in range(3):
        batch.add(seed, log.Outcome("a wrong bit" if seed else "as it should be", bool(seed), peak=1 << 21), 1.0)
    again = log.Batch("hygiene", "threads", 1, "python -m evidence.campaign --again", again=True)
    again.add(1, log.Outcome("a wrong bit", True), 1.0)
    text = "\n".join(page.lines([vars(each) | FACTS for each in (batch, again)]))
    assert "| Host process | 3 | 1 passed, 2 defects | 2 | 0 | 2026-11-24 |" in text
    assert f"hygiene, threads (3 of {hygiene.KINDS['threads']}), hygiene, fork (0 of" in text
    assert "a few steps" not in text


FACTS = {"date": "2026-11-24", "machine": "none", "source": "none"}


def test_every_part_has_its_place_on_the_page_and_the_names_that_the_campaign_asks_for():
    assert [part.NAME for part in parts.every()] == list(page.PARTS)
    for part in parts.every():
        assert set(part.SHORT) <= set(part.KINDS)
        assert set(part.JUDGED) <= set(part.KINDS)
        assert callable(part.cases)
        assert part.BATCH > 0
