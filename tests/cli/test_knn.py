"""regard knn, and evaluate and generate with a datastore: of published weights and of a run of one's own."""

import importlib
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from regard.core.errors import CheckpointError
from regard_lab.networks.datastores import lookup
from regard_lab.retrieval import Datastore
from tests.cli.conftest import published

TEXTS = ("a b c d e f g h i j a c e g i b d f h j\n" * 5, "j i h g f e d c b a a b b c c d d e e f f\n" * 3)


@pytest.fixture
def network(tmp_path) -> str:
    (tmp_path / "folder").mkdir()
    for name, text in zip(("one.txt", "two.md"), TEXTS, strict=True):
        (tmp_path / "folder" / name).write_text(text)
    (tmp_path / "other.txt").write_text("a b c d e f g h i j b d c e f h g j i\n" * 4)
    return published(tmp_path / "letters", seed=0)


def figures(regard, *words: str) -> dict:
    answer = regard("evaluate", *words, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_a_folder_of_text_becomes_a_datastore_that_is_used(regard, network):
    answer = regard("knn", "build", "--model", network, "folder", "--out", "store", "--json")
    assert answer.code == 0, answer.err
    stats = json.loads(answer.out)
    assert (stats["entries"], stats["dim"], len(stats["documents"])) == (99 + 62, 16, 2)
    assert json.loads(regard("knn", "stats", "store", "--json").out) == stats
    assert "161 entries, sound" in regard("knn", "verify", "store").out

    alone = figures(regard, network, "--corpus", "folder")
    beside = ["--corpus", "folder", "--datastore", "store", "--knn.k", "8"]
    nothing = figures(regard, network, *beside, "--knn.lam", "0")
    left_out, found = figures(regard, network, *beside), figures(regard, network, *beside, "--knn.own")
    said = nothing.pop("datastore")
    assert nothing == alone
    assert said == {
        "folder": "store",
        "entries": 161,
        "k": 8,
        "lam": 0.0,
        "temperature": 1.0,
        "own_entries_left_out": True,
    }
    assert found["datastore"] == {**said, "lam": 0.25, "own_entries_left_out": False}
    shown = regard("evaluate", network, *beside).out
    assert all(word in shown for word in ("store (161 entries)", "weight of neighbours", "0.25", "left out"))
    assert found["nats_per_token"] < left_out["nats_per_token"] != alone["nats_per_token"]
    assert figures(regard, network, *beside, "--batch-size", "4")["nats_per_token"] == pytest.approx(
        left_out["nats_per_token"], rel=1e-5
    )
    other = ["--corpus", "other.txt", "--datastore", "store"]
    same = [figures(regard, network, *other, *own) for own in ((), ("--knn.own",))]  # nothing of it is stored
    assert [each.pop("datastore")["k"] for each in same] == [161, 161]
    assert same[0] == same[1]

    words = ["generate", network, "a b c d e f g h i j a c e", "--temperature", "0", "--max-new-tokens", "6"]
    stored = regard(*words, "--datastore", "store", "--knn.lam", "1", "--knn.k", "1")
    assert stored.out.split() == ["g", "i", "b", "d", "f", "h"]
    assert regard(*words, "--datastore", "store", "--knn.lam", "0").out == regard(*words).out != stored.out


def test_keys_to_leave_out_are_those_of_the_model_behind_a_datastore_too(regard, network):
    assert regard("knn", "build", "--model", network, "folder", "--out", "store").code == 0
    path = Path(network, "config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "new_scale": 2.0}))
    with pytest.raises(CheckpointError, match=r"new_scale=2\.0: regard does not apply this key"):
        lookup("store", network, k=2)
    assert lookup("store", network, k=2, ignore=["new_scale"]).k == 2


def test_what_is_near_is_shown_with_its_context(regard, network):
    assert regard("knn", "build", "--model", network, "folder", "--out", "store").code == 0
    answer = regard("knn", "search", "store", "a b c d e", "--model", network, "--knn.k", "3", "--json")
    rows = json.loads(answer.out)
    assert len(rows) == 3
    assert rows[0]["distance"] == pytest.approx(0, abs=1e-3)
    assert (rows[0]["before"].split(), rows[0]["token"].strip(), rows[0]["place"]) == (["b", "c", "d", "e"], "f", 5)
    shown = regard("knn", "search", "store", "-", "--model", network, stdin=b"a b c d e")
    assert "distance" in shown.out
    assert rows[0]["document"] == "one.txt"
    assert "one.txt" in shown.out
    of_one = regard("knn", "build", "--model", network, "folder", "--out", "one", "--document", "one.txt", "--json")
    assert list(json.loads(of_one.out)["documents"]) == ["one.txt"]
    assert figures(regard, network, "--corpus", "folder", "--document", "one.txt")["tokens"] == 99


def test_settings_are_swept(regard, network):
    assert regard("knn", "build", "--model", network, "folder", "--out", "store").code == 0
    words = ["knn", "sweep", "store", "other.txt", "--model", network]
    found = json.loads(regard(*words, "--json").out)
    best = found["settings"][0]
    assert best["nats"] == min(one["nats"] for one in found["settings"]) <= found["model_alone"]
    setting = [f"--knn.{name}={best[name]}" for name in ("lam", "k", "temperature")]
    with_it = figures(regard, network, "--corpus", "other.txt", "--datastore", "store", *setting)
    assert with_it["nats_per_token"] == pytest.approx(best["nats"], rel=1e-5)
    assert "nats per token without the datastore" in regard(*words).out


def test_an_index_is_made_and_used(regard, network):
    pytest.importorskip("faiss", reason="the knn extra is not installed")
    assert regard("knn", "build", "--model", network, "folder", "--out", "store", "--index", "flat", "ivf").code == 0
    words = ["--corpus", "other.txt", "--datastore", "store", "--knn.k", "8"]
    exact, flat = figures(regard, network, *words), figures(regard, network, *words, "--knn.index", "flat")
    assert flat["nats_per_token"] == pytest.approx(exact["nats_per_token"], rel=1e-6)
    assert figures(regard, network, *words, "--knn.index", "ivf", "--knn.probes", "1")["tokens"] == exact["tokens"]
    answer = regard("evaluate", network, *words, "--knn.index", "hnsw")
    assert (answer.code, "has no index hnsw; make it with regard knn index store --index hnsw" in answer.err) == (
        2,
        True,
    )


def test_an_index_is_made_later_and_made_again(regard, network):
    """As after a kill between the datastore and its index, after an addition, and where the file is damaged."""
    pytest.importorskip("faiss", reason="the knn extra is not installed")
    assert regard("knn", "build", "--model", network, "folder", "--out", "store").code == 0
    entries = json.loads(regard("knn", "stats", "store", "--json").out)["entries"]
    uses = ["evaluate", network, "--corpus", "other.txt", "--datastore", "store", "--knn.k", "8", "--knn.index", "ivf"]

    def mended() -> None:
        answer = regard(*uses)
        assert answer.code in (2, 4)
        command = re.search(r"with regard (knn index store --index ivf)\n", answer.err)
        assert command is not None, answer.err
        answer = regard(*command[1].split())
        assert answer.code == 0, answer.err
        assert regard(*uses).code == 0
        assert json.loads(regard("knn", "stats", "store", "--json").out)["entries"] == entries

    mended()
    for name in ("ivf.faiss", "ivf.json"):
        Path("store", name).write_bytes(b"{}")
        mended()
    Path("store", "ivf.json").unlink()
    mended()
    assert regard("knn", "build", "--model", network, "other.txt", "--out", "store", "--add").code == 0
    entries = json.loads(regard("knn", "stats", "store", "--json").out)["entries"]
    mended()
    answer = regard("knn", "index", "store")
    assert (answer.code, "knn index needs --index with the kinds" in answer.err) == (2, True)
    assert json.loads(regard("knn", "index", "store", "--index", "flat", "hnsw", "--json").out)["indices"]


def test_datastores_are_merged_and_documents_deleted(regard, network):
    """As from Python: the bytes of the merge, and of what is left the search."""
    for folder, out in (("folder", "a store"), ("other.txt", "two")):
        assert regard("knn", "build", "--model", network, folder, "--out", out).code == 0
    first, second = (Datastore.open(name) for name in ("a store", "two"))
    answer = regard("knn", "merge", "a store", "two", "a store", "--out", "all", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["entries"] == 2 * len(first) + len(second)
    wanted = Datastore.merge("wanted", [first, second, first])
    for path in wanted.folder.iterdir():
        assert Path("all", path.name).read_bytes() == path.read_bytes()

    names = list(first.stats().documents)
    answer = regard("knn", "delete", "all", "--document", names[0], "nothing")
    assert (answer.code, "all has no document 'nothing'; regard knn stats --json lists" in answer.err) == (2, True)
    assert len(Datastore.open("all")) == len(wanted)
    answer = regard("knn", "delete", "all", "--document", names[0][:-1])
    assert (answer.code, f"all has no document '{names[0][:-1]}'; do you mean {names[0]}?" in answer.err) == (2, True)
    answer = regard("knn", "stats", "all")
    assert f"{len(names)} (texts that it has already)" in answer.out
    answer = regard("knn", "delete", "all", "--document", *names, "--json")
    assert answer.code == 0, answer.err
    left = json.loads(answer.out)
    assert (left["entries"], left["documents"]) == (len(second), second.stats().documents)
    again = regard("knn", "build", "--model", network, "other.txt", "--out", "all", "--add")
    assert (again.code, "all has a document 'other.txt:train' already: rename the file" in again.err) == (2, True)
    query = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    found = [store.search(query, 4).values for store in (Datastore.open("all"), second)]
    assert torch.equal(*found)
    assert regard("knn", "delete", "all", "--document", "other.txt").code == 0
    assert not len(Datastore.open("all", checked=False))

    for words, code, said in (
        (["merge", "a store", "--out", "new"], 2, "knn merge needs another one"),
        (["merge", "a store", "two"], 2, "knn merge needs --out"),
        (["merge", "a store", "folder", "--out", "new"], 2, "folder is no datastore"),
        (["delete", "all"], 2, "knn delete needs --document"),
        (["search", "all", "a", "b", "--model", network], 2, "a text stands in quotes"),
        (["build", "folder", "--model", network, "--out", "a store"], 2, "regard knn index 'a store'"),
    ):
        answer = regard("knn", *words)
        assert (answer.code, said in answer.err) == (code, True), (words, answer.err)
    assert not Path("new").exists()


def test_a_missing_faiss_is_said_before_the_work(regard, network, monkeypatch):
    found = importlib.import_module

    def missing(name: str, *given: str):
        if name == "faiss":
            raise ImportError(name)
        return found(name, *given)

    monkeypatch.setattr(importlib, "import_module", missing)
    answer = regard("knn", "build", "--model", network, "folder", "--out", "store", "--index", "ivf")
    assert (answer.code, "an index needs FAISS" in answer.err, Path("store").exists()) == (2, True, False)


def test_a_run_of_ones_own_takes_a_datastore(regard, run, text):
    out = regard("knn", "build", "--model", str(run), str(text), "--out", "store", "--json")
    assert out.code == 0, out.err
    alone = figures(regard, str(run), "--corpus", str(text))
    words = [str(run), "--corpus", str(text), "--datastore", "store", "--knn.k", "4"]
    found, left_out = figures(regard, *words, "--knn.own"), figures(regard, *words)
    assert found["nats_per_token"] < left_out["nats_per_token"]
    assert found["nats_per_token"] < alone["nats_per_token"]
    nothing = figures(regard, *words, "--knn.lam", "0")
    assert nothing.pop("datastore")["lam"] == 0
    assert nothing == alone
    answer = regard("generate", str(run), "1 is", "--datastore", "store", "--max-new-tokens", "5")
    assert answer.code == 0, answer.err


def test_errors_say_what_is_wrong(regard, network, tmp_path):
    build = ["knn", "build", "--model", network, "folder", "--out"]
    assert regard(*build, "store").code == 0
    again = regard(*build, "store")
    assert (again.code, "is a whole datastore" in again.err) == (2, True)
    assert regard("knn", "build", "--model", network, "other.txt", "--out", "store", "--add").code == 0

    other = published(tmp_path / "others", seed=1)
    letters = tmp_path / "others" / "tokenizer.json"
    uses = ["--corpus", "other.txt", "--datastore", "store"]
    answer = regard("evaluate", other, *uses)
    assert (answer.code, "store was made with another model" in answer.err) == (4, True)
    shutil.copytree(network, tmp_path / "renamed")
    renamed = tmp_path / "renamed" / letters.name
    renamed.write_text(renamed.read_text().replace('"j"', '"k"'))
    answer = regard("generate", str(tmp_path / "renamed"), "a", "--datastore", "store")
    assert (answer.code, "store was made with another tokenizer" in answer.err) == (4, True)

    Path("table.csv").write_text("text\nto be\n")
    for words, code, said in (
        (["evaluate", network, *uses, "--knn.k", "9999"], 6, "--knn.k=9999 neighbours, and the datastore has"),
        (["evaluate", network, *uses, "--knn.lam", "2"], 2, "--knn.lam must be from 0"),
        (["evaluate", network, "--corpus", "other.txt", "--knn.lam", "0.5"], 2, "--knn.lam goes with --datastore"),
        (["evaluate", network, "--corpus", "other.txt", "--datastore", "folder"], 2, "folder is no datastore"),
        (["evaluate", network, *uses, "--knn.probes", "3"], 2, "--knn.probes is of an index"),
        (["generate", network, "a", "--datastore", "store", "--knn.own"], 2, "--knn.own has no use for it"),
        (["generate", network, "a", "--knn.k", "3"], 2, "--knn.k goes with --datastore"),
        (["knn", "build", "folder", "--out", "new"], 2, "knn build needs --model"),
        (["knn", "build", "folder", "--model", network], 2, "knn build needs --out"),
        (["knn", "search", "store", "--model", network], 2, "knn search needs a text to look up"),
        (["knn", "stats", "store", "--model", network], 2, "knn stats has no use for --model"),
        (["knn", "verify", "store", "--knn.k", "3"], 2, "knn verify has no use for --knn.k"),
        (["knn", "search", "store", "a", "--model", network, "--knn.lam", "0.5"], 2, "no use for --knn.lam"),
        ([*build, "new", "--document", "1999"], 2, "folder has no document '1999': valid: one.txt, two.md"),
        ([*build, "new", "--length", "0"], 2, "--length must be at least 1, got 0"),
        (["knn", "build", "table.csv", "--model", network, "--out", "new", "--field", "no"], 3, "one with --field"),
        (["knn", "sweep", "store", "other.txt", "--model", network, "--length", "0"], 2, "--length must be at least 1"),
        (["knn", "sweep", "store", "other.txt", "--model", network, "--limit", "-1"], 2, "--limit must be at least 0"),
        ([*build, "new", "--length", "25"], 6, "at most the model's 24 positions"),
    ):
        answer = regard(*words)
        assert (answer.code, said in answer.err) == (code, True), (words, answer.err)
    assert not Path("new").exists()

    damaged = next(Path("store").glob("*.keys"))
    damaged.write_bytes(damaged.read_bytes()[::-1])
    for words in (["evaluate", network, *uses], ["knn", "verify", "store"]):
        answer = regard(*words)
        assert (answer.code, f"{damaged.name} is damaged" in answer.err) == (4, True)


def test_names_with_brackets_and_what_is_left_out_are_said_as_they_are(regard, network, tmp_path):
    (tmp_path / "folder" / "empty.txt").write_text("")
    (tmp_path / "[").mkdir()
    answer = regard("knn", "build", "--model", network, "folder", "--out", "[/b]store", "--json")
    assert json.loads(answer.out)["entries"] == 161
    assert "left out: 1 empty" in answer.err
    assert regard("knn", "verify", "[/b]store").out == "[/b]store: 161 entries, sound\n"
    shown = {
        line.split()[0]: line.split()[1:]
        for line in regard("knn", "stats", "[/b]store").out.splitlines()
        if line.strip()
    }
    assert "[/b]store" in shown
    assert [len(word) for word in (*shown["model"], *shown["tokenizer"])] == [12, 12]


def test_neighbours_alone_that_do_not_have_a_target_are_no_diverged_weights(regard, network):
    regard("knn", "build", "--model", network, "folder", "--out", "store")
    beside = ("--corpus", "other.txt", "--datastore", "store", "--knn.lam", "1")
    answer = regard("evaluate", network, *beside, "--knn.k", "1")
    assert answer.code == 5, answer.err
    assert (
        "targets are none of their 1 neighbours' tokens: their loss is infinite. Choose a weight below 1" in answer.err
    )
    assert not any(word in answer.err for word in ("diverged", "fetch", "remove"))
    assert regard("evaluate", network, *beside).code == 0  # of all, every word is somewhere


def test_windows_of_another_length_are_said(regard, network):
    regard("knn", "build", "--model", network, "folder", "--out", "store")
    words = ("evaluate", network, "--corpus", "other.txt", "--datastore", "store")
    told = "store was built in windows of 24 tokens, and this text is read in windows of 12"
    assert told in regard(*words, "--length", "12").err
    assert "windows" not in regard(*words).err
    assert told in regard("knn", "sweep", "store", "other.txt", "--model", network, "--length", "12").err
