"""The campaign sees what is wrong: planted defects of every part; and its page is what its log gives."""

import argparse
import errno
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from evidence.campaign import __main__ as main
from evidence.campaign import (
    broken,
    children,
    damage,
    equal,
    faults,
    fuzz,
    injected,
    inputs,
    kills,
    log,
    page,
    several,
    works,
)
from evidence.campaign.kills import Scene
from evidence.campaign.works import Work

ENDED = children.Ended(0, "", "", 0.1, 0.1, 0)


def ended(code: int, err: str = "", **more: float | str) -> children.Ended:
    return children.Ended(**{**vars(ENDED), "code": code, "err": err, **more})


def test_the_page_is_what_the_log_gives():
    """Write it again with `python -m evidence.campaign --page`."""
    assert page.PAGE.read_text(encoding="utf-8") == "\n".join(page.lines(log.read(log.RECORDED))) + "\n"


def test_the_log_is_small_and_names_no_place():
    text = log.RECORDED.read_text(encoding="utf-8")
    assert len(text) < 400_000
    assert not re.search(r"/(tmp|home|root|work)/", text)
    assert os.uname().nodename not in text
    for batch in log.read(log.RECORDED):
        assert set(vars(log.Batch("", "", 0, ""))) <= set(batch)
        assert sum(batch["outcomes"].values()) + len(batch["defects"]) == batch["count"]


def test_a_log_goes_on_where_it_ended_and_knows_what_is_open(tmp_path):
    path = tmp_path / "log.jsonl"
    for first, outcomes, judged in ((0, "rwr", 1), (3, "wr", 2)):
        batch = log.Batch("kills", "text", first, "python -m evidence.campaign", judged=judged)
        for at, letter in enumerate(outcomes):
            wrong = letter == "w"
            said = "a /tmp/x/file differs" if wrong else "same bits"
            batch.add(first + at, log.Outcome(said, wrong, {"kills": 3}), 1.0)
        log.append(path, batch)
    log.append(path, log.Batch("kills", "text", 9, ""))
    assert (log.following(log.read(path), "kills", "text"), log.following(log.read(path), "kills", "copy")) == (5, 0)
    assert [each["seed"] for each in log.open_defects(log.read(path))] == [1, 3]
    assert log.read(path)[0]["defects"] == [{"seed": 1, "what": "a file differs"}]
    mended = log.Batch("kills", "text", 3, "python -m evidence.campaign --again", again=True)
    mended.add(3, log.Outcome("same bits", counts={"kills": 2}), 1.0)
    log.append(path, mended)
    assert [each["seed"] for each in log.open_defects(log.read(path))] == [1]
    text = "\n".join(page.lines(log.read(path)))
    kinds = "2 with 6 kills | 1 same result, 1 defects | 2 | 1 |"  # the first three were judged otherwise
    assert f"| Kills | {kinds}" in text
    assert "not in the table: 3 of kills." in text
    assert "- Open: kills, text, seed 1." in text
    assert "seed 3." not in text
    assert [log.made(log.read(path), "kills", "text", judged) for judged in (1, 2)] == [3, 2]


def test_what_an_old_log_does_not_say_is_as_it_was(tmp_path):
    """And such cases are made again, with seeds behind theirs."""
    batch = json.loads(log.Batch("kills", "text", 0, "python -m evidence.campaign").line())
    old = {key: value for key, value in batch.items() if key != "judged"}
    (tmp_path / "log.jsonl").write_text(json.dumps(old | {"count": 12}) + "\n")
    read = log.read(tmp_path / "log.jsonl")
    assert read[0]["judged"] == 1
    assert (log.following(read, "kills", "text"), log.made(read, "kills", "text", 2)) == (12, 0)
    planned = main._planned(kills, ["text"], argparse.Namespace(again=False, short=False, first=None, cases=None,
                                                                seconds=None), read)  # fmt: skip
    assert [(kind, [*seeds]) for kind, seeds in planned] == [("text", [*range(12, 12 + kills.KINDS["text"])])]


@pytest.mark.parametrize(
    ("codes", "said", "wanted"),
    [
        ([0, 0], "", 0),
        ([-9, 6], "regard train: process 1 of 2: lost process 0, which left", -9),
        ([6, -9], "regard train: process 0 of 2: lost process 1, which left", -9),
        ([6, -9], "regard train: the 2 processes of torchrun did not all come within 20 seconds", -9),
        ([-9, 0], "", -9),
        ([-9, 6], "regard train: lost process 1", 6),
        ([-9, 1], "lost process 0", 1),
        ([3, 6], "", 3),
    ],
)
def test_of_two_processes_the_one_that_is_left_names_the_other(monkeypatch, codes, said, wanted):
    told = children.Ended(0, f"more\n{json.dumps(codes)}", said, 0.1, 0.1, 0)
    monkeypatch.setattr(children, "call", lambda *arguments: told)
    assert several.command((), Path()).code == wanted


def _written(place: Path) -> int:
    (place / "one").write_bytes(b"0123456789")
    (place / "two").mkdir()
    os.replace(place / "one", place / "two" / "one")
    return 0


def test_operations_are_met_one_by_one(tmp_path):
    """Open, write, mkdir, rename: each is there, or half of it, or not."""
    left = []
    for number in range(1, 6):
        place = tmp_path / str(number)
        place.mkdir()
        act = injected.killed(number)
        done = children.call(
            lambda p=place: _written(p), place, before=lambda a=act, p=place: injected.before_operations(a, p)
        )
        assert done.code == (0 if number == 5 else -signal.SIGKILL)
        left.append({path.name: path.stat().st_size for path in place.rglob("*") if path.is_file()})
        assert (place / "two").exists() is (number > 3)
    assert left == [{}, {"one": 5}, {"one": 10}, {"one": 10}, {"one": 10}]


@pytest.mark.parametrize(("error", "for_good", "refused"), [(errno.ENOSPC, False, [2]), (errno.EROFS, True, [2, 3, 4])])
def test_operations_are_refused(tmp_path, error, for_good, refused):
    def tries() -> int:
        for number, call in enumerate((lambda: open("a", "w").close(), lambda: os.mkdir("b"), lambda: os.mkdir("c"),
                                       lambda: os.unlink("a")), 1):  # fmt: skip
            try:
                call()
            except OSError as caught:
                print(number, errno.errorcode[caught.errno])
        return 0

    act = injected.refused(2, error, for_good=for_good)
    done = children.call(tries, tmp_path, before=lambda: injected.before_operations(act, tmp_path))
    assert done.out.split("\n")[:-1] == [f"{number} {errno.errorcode[error]}" for number in refused]


def spins() -> int:
    while True:
        pass


def slowly() -> int:
    """As on a busy machine: half of the time."""
    until = time.monotonic() + 1.8
    while time.monotonic() < until:
        turn = time.monotonic() + 0.01
        while time.monotonic() < turn:
            pass
        time.sleep(0.01)
    return 0


def test_a_child_is_seen_to_fail_to_hang_and_to_take_memory(tmp_path):
    def fails() -> int:
        raise ValueError("planted")

    assert children.call(fails, tmp_path).traceback
    assert children.call(lambda: int(bool(signal.pause())), tmp_path, seconds=0.2).hung
    assert children.call(spins, tmp_path, seconds=0.2).hung
    assert not children.call(slowly, tmp_path, seconds=1.0).hung
    assert children.call(lambda: len(bytearray(b"x" * (1 << 26))) & 0, tmp_path).peak > 1 << 25
    assert children.call(lambda: len(bytearray(1 << 30)) & 0, tmp_path, memory=1 << 24).traceback

    def waits() -> int:
        time.sleep(0.2)  # the signal comes now, and waits
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return int(bool(signal.pause()))

    stopped = children.call(waits, tmp_path, stop=(0.0, signal.SIGTERM))
    assert stopped.code == -signal.SIGTERM


def test_other_bits_and_leftovers_are_differences(tmp_path):
    for name in ("whole", "other"):
        (tmp_path / name / "below").mkdir(parents=True)
        for file in ("a", "below/b"):
            (tmp_path / name / file).write_bytes(b"same")
    assert equal.folders(tmp_path / "other", tmp_path / "whole") == []
    (tmp_path / "other" / "a").write_bytes(b"sane")
    (tmp_path / "other" / "below" / "b").unlink()
    (tmp_path / "other" / ".c.partial").write_bytes(b"")
    assert equal.folders(tmp_path / "other", tmp_path / "whole") == ["a", "below/b is missing", "left: .c.partial"]


JUDGED = [
    (ended(0), True, ("same bits", False)),
    (ended(0), False, ("another result, and nothing is said", True)),
    (ended(0, "the file it.json is damaged"), False, ("goes on without it, and says so", False)),
    (ended(4, "regard: it.json is damaged"), False, ("named", False)),
    (ended(4, "regard: run/step-1: no sound manifest"), False, ("named", False)),
    (ended(4, "regard: something is damaged"), False, ("not named", True)),
    (ended(1, "Traceback (most recent call last):\nit.json"), False, ("exit code 1", True)),
    (ended(-11), False, ("exit code -11", True)),
    (ended(4, "it.json", seconds=99.0), False, ("took 99", True)),
    (ended(4, "it.json", peak=3 << 30), False, ("took 3072 MiB", True)),
]


@pytest.mark.parametrize(("done", "same", "wanted"), JUDGED)
def test_damage_is_judged(done, same, wanted):
    said, wrong = damage._judged(done, ENDED, Path("run/step-1/it.json"), same=same, sealed=True)
    assert (said.startswith(wanted[0]), wrong) == (True, wanted[1])


@pytest.mark.parametrize(
    ("told", "printed", "wrong"),
    [
        ("skipped run/step-1", "run/step-0 -> out", False),
        ("", "run/step-0 -> out", True),
        ("", "run/step-1 -> x", True),
    ],
)
def test_a_name_that_is_usually_printed_tells_of_damage_where_it_is_a_warning(told, printed, wrong):
    usual, done = ended(0, out="run/step-1 -> out"), ended(0, told, out=printed)
    assert damage._judged(done, usual, Path("run/step-1/it.json"), same=False, sealed=True)[1] is wrong


def test_files_of_others_may_be_read_as_what_they_are():
    assert damage._judged(ENDED, ENDED, Path("a.txt"), same=False, sealed=False) == ("read as what it now is", False)


@pytest.mark.parametrize("way", broken.WAYS)
def test_damage_reaches_the_copy_alone(tmp_path, way):
    import random

    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "a.json").write_text('{"x": 1, "y": [true, "text"]}\n')
    (tmp_path / "base" / "b.json").write_text('{"z": 2}\n')
    changed = 0
    for seed in range(8):
        shutil.copytree(tmp_path / "base", tmp_path / f"{seed}", copy_function=os.link)
        path = tmp_path / f"{seed}" / "a.json"
        broken.WAYS[way](path, random.Random(seed))
        plain = path.is_file() and not path.is_symlink()
        changed += not plain or path.read_bytes() != (tmp_path / "base" / "a.json").read_bytes()
        assert json.loads((tmp_path / "base" / "a.json").read_text()) == {"x": 1, "y": [True, "text"]}
    assert changed


class Pretended(Scene):
    """Of a work that ends as it is told."""

    def __init__(self, tmp_path: Path, wrong: list[str]) -> None:
        self.work = Work("pretended", lambda place: (), "run", equal.folders, whole_again="is whole")
        self.wrong, self.operations = wrong, ["write run/file"]
        self.place_of = tmp_path / "case"

    def finished(self, place: Path) -> tuple[list[str], children.Ended]:
        return self.wrong, ENDED


@pytest.mark.parametrize(
    ("done", "wrong", "defect"),
    [
        (ended(6, "regard train: cannot write it: No space left on device"), [], None),
        (ended(0), [], None),
        (ended(2, "regard: it is whole"), [], None),
        (ended(6, "regard train: cannot write it: No space left on device"), ["model.safetensors"], "afterwards"),
        (ended(6, "regard train: something"), [], "does not say"),
        (ended(6, "regard train: No space left on device\nmore\n"), [], "in 2 lines"),
        (ended(1, "Traceback (most recent call last):\n"), [], "a traceback"),
        (ended(5, "regard: No space left on device"), [], "exit code 5"),
        (ended(0, hung=True), [], "hung"),
    ],
)
def test_faults_are_judged(tmp_path, done, wrong, defect):
    scene = Pretended(tmp_path, wrong)
    scene.place_of.mkdir()
    found = faults._judged(scene, scene.place_of, done, "a fault", codes=(6,), says="No space left on device")
    assert found.defect is (defect is not None)
    assert defect is None or defect in found.what


def test_only_errors_of_the_library_may_come_out():
    from regard.core.errors import ConfigError

    def raises(error: BaseException) -> str:
        raise error

    def prints() -> str:
        import sys

        print("Traceback (most recent call last):", file=sys.stderr)
        return "accepted"

    assert fuzz._guarded(lambda: raises(ConfigError("no"))) == "refused"
    assert fuzz._guarded(lambda: raises(KeyboardInterrupt())) == "began its work"
    assert fuzz._guarded(lambda: "accepted") == "accepted"
    for wrong in (lambda: raises(ValueError("x")), lambda: raises(ConfigError("")), prints):
        assert fuzz._guarded(wrong).startswith("defect")


@pytest.mark.parametrize(("kind", "said"), [(KeyboardInterrupt, "accepted"), (ValueError, "defect")])
def test_an_interruption_while_an_object_is_freed_is_no_defect(kind, said):
    """The alarm of a command that works may come there, and Python says of it what it says of an error."""

    class Loud:
        def __del__(self) -> None:
            raise kind

    assert fuzz._guarded(lambda: "accepted" if Loud() else "").startswith(said)


def test_inputs_are_those_of_their_seed():
    import random

    def made(seed: int) -> tuple[object, ...]:
        draw = random.Random(seed)
        return (
            inputs.words(draw, fuzz.BASES["train"], ["--steps", "--out"], ["--risk"]),
            inputs.specification(draw, ["softmax", "local"], {"local": ["window"]}),
            inputs.configuration(draw, works.SETTINGS),
        )

    assert made(3) == made(3)
    assert len({str(made(seed)) for seed in range(20)}) == 20


def test_every_task_is_trained_and_killed():
    from typing import get_args

    from regard_lab.tasks.config import TaskConfig

    given = " ".join(" ".join(words) for words in works.TRAININGS.values())
    assert all(f"--task {kind.name}" in given for kind in get_args(TaskConfig))
    assert len(works.names()) == len(set(works.names()))
