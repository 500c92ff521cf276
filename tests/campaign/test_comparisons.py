"""What the campaign compares of runs and of additions: each thing that may not differ, differing by itself."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from evidence.campaign import children, damage, equal, works
from regard.files.checksums import MANIFEST, opened, sealed, write_manifest

NEWEST = "step-00000012"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run of the campaign."""
    place = tmp_path_factory.mktemp("whole")
    done = children.command(works.training("copy").words(place), place)
    assert done.code == 0, done.said
    return place / "run"


def checkpoint(change: Callable[[Path], None]) -> Callable[[Path], None]:
    """Change its newest checkpoint, which has another name and a manifest that knows nothing of it."""

    def changed(run: Path) -> None:
        path = run / "checkpoints" / f"{NEWEST}.1"
        (run / "checkpoints" / NEWEST).rename(path)
        change(path)
        write_manifest(path, sorted(file.name for file in path.iterdir() if file.name != MANIFEST))

    return changed


def flipped(name: str) -> Callable[[Path], None]:
    def flip(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[-1] ^= 1
        (folder / name).write_bytes(data)

    return flip


def further(folder: Path) -> None:
    document = json.loads((folder / "progress.json").read_text())
    (folder / "progress.json").write_text(json.dumps({**document, "tokens": document["tokens"] + 1}))


def of_another(run: Path) -> None:
    document = opened((run / MANIFEST).read_bytes())
    document["run"] = "0" * 32
    (run / MANIFEST).write_text(json.dumps(sealed(document)))


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def replace(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new))

    return replace


CHANGES: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "nothing": (lambda run: None, []),
    "the name of a checkpoint": (checkpoint(lambda path: None), []),
    "weights": (checkpoint(flipped("model.safetensors")), ["model.safetensors"]),
    "moments": (checkpoint(flipped("optimizer.safetensors")), ["optimizer.safetensors"]),
    "random states": (checkpoint(flipped("rng.safetensors")), ["rng.safetensors"]),
    "progress": (checkpoint(further), ["progress.json"]),
    "an older checkpoint": (
        flipped("checkpoints/step-00000008/optimizer.safetensors"),
        ["checkpoints/step-00000008/optimizer.safetensors"],
    ),
    "a line": (replaced("metrics.jsonl", '"step": 10', '"step": 11'), ["metrics.jsonl"]),
    "a setting": (replaced("config.toml", "batch_size = 4", "batch_size = 5"), ["config.toml"]),
    "the threads": (replaced("env.json", '"threads": 1', '"threads": 2'), ["env.json"]),
    "the run": (of_another, ["the id of the run"]),
    "a file more": (lambda run: (run / "notes.txt").touch(), ["notes.txt is beside them"]),
    "a file less": (lambda run: (run / "env.json").unlink(), ["env.json is missing"]),
    "half a file": (lambda run: (run / ".env.json.partial").touch(), ["left: .env.json.partial"]),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_differs_of_a_run_is_told(whole, tmp_path, what):
    shutil.copytree(whole, tmp_path / "run")
    change, wanted = CHANGES[what]
    change(tmp_path / "run")
    assert equal.runs(tmp_path / "run", whole) == wanted


def test_another_checkout_is_no_difference_and_other_threads_behind_it_are(whole, tmp_path):
    """The log that the campaign writes makes the checkout another one."""
    shutil.copytree(whole, tmp_path / "run")
    path = tmp_path / "run" / "env.json"
    first = json.loads(path.read_text())
    for change, wanted in (({"revision": "other"}, []), ({"revision": "other", "threads": 7}, ["env.json"])):
        path.write_text(json.dumps(first | {"continued": [first | change]}))
        assert equal.runs(tmp_path / "run", whole) == wanted


def test_half_a_line_of_metrics_is_no_run(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    (tmp_path / "run" / "metrics.jsonl").write_bytes(lines[:-1])
    with pytest.raises(ValueError, match="does not end with a line"):
        equal.runs(tmp_path / "run", whole)


@pytest.mark.parametrize(
    ("documents", "block", "wanted"),
    [
        ("abcd", b"same", []),
        ("abcdcd", b"same", []),
        ("abcdcdcd", b"same", []),
        ("abcd", b"sane", ["1.keys"]),
        ("abcdcd", b"sane", ["1.keys"]),
        ("abcdc", b"same", ["manifest.json has the documents ['a', 'b', 'c', 'd', 'c']"]),
        ("abcdab", b"same", ["manifest.json has the documents ['a', 'b', 'c', 'd', 'a', 'b']"]),
        ("ab", b"same", ["manifest.json has the documents ['a', 'b']"]),
    ],
)
def test_an_addition_is_there_once_or_as_often_as_it_was_asked_for(tmp_path, documents, block, wanted):
    for folder, given, data in ((tmp_path / "whole", "abcd", b"same"), (tmp_path / "ours", documents, block)):
        folder.mkdir()
        (folder / "1.keys").write_bytes(data)
        (folder / "manifest.json").write_text(json.dumps({"documents": list(given)}))
    assert works._added_once(tmp_path / "ours", tmp_path / "whole") == wanted


def test_what_a_command_leaves_is_part_of_its_result(tmp_path, monkeypatch):
    """With the same words on both sides, in a file beside them."""
    monkeypatch.setattr(children, "command", lambda *_, **__: children.Ended(0, "same", "", 0.1, 0.1, 0))
    subject, found = damage.Subject(True, (), (), (), leaves=("weights",)), set()
    for data in (None, b"one", b"two"):
        if data is not None:
            (tmp_path / "weights").write_bytes(data)
        found.add(damage._run(subject, tmp_path, ("info",))[1])
    assert len(found) == 3


def test_a_command_that_fails_on_what_is_sound_is_no_case(tmp_path, monkeypatch):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "it.txt").write_text("sound")
    failed = children.Ended(4, "", "regard: no", 0.1, 0.1, 0)
    monkeypatch.setitem(damage.SUBJECTS, "planted", damage.Subject(True, (), (("info", "it.txt"),), ("*",)))
    monkeypatch.setattr(damage, "_prepare", lambda subject, base, more=(): None)
    monkeypatch.setattr(damage, "_run", lambda subject, place, words: (failed, ""))
    with pytest.raises(RuntimeError, match=r"planted: regard info it\.txt gives no result: regard: no"):
        damage.cases("planted", tmp_path)
