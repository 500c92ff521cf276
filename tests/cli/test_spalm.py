"""regard train, evaluate and generate of a model that mixes in neighbours, from the command line."""

import json
from pathlib import Path

import pytest

from regard_lab.training import load
from regard_lab.training.checkpoint import newest

MIXING = ["--preset", "spalm(memory_length=16)", "--model.max-length", "16", "--model.mlp-dim", "24"]
BESIDE = ["--datastore", "store", "--datastore-model", "base"]


@pytest.fixture
def store(regard, run, text) -> Path:
    """A datastore of the text of `run`, made by it."""
    run.rename("base")
    answer = regard("knn", "build", "--model", "base", text, "--out", "store", "--json")
    assert answer.code == 0, answer.err
    return Path("store")


@pytest.fixture
def words(tiny, text) -> list[str]:
    shared = ["train", *MIXING, *tiny, "--task.corpus", str(text), "--task.cache", "cache", "--log-every", "2"]
    return [*shared, "--steps", "4", "--checkpoint-every", "2"]


def figures(regard, *words: str) -> dict:
    answer = regard("evaluate", *words, "--json")
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_a_run_reads_its_datastore_wherever_it_is_used(regard, store, words):
    answer = regard(*words, *BESIDE, "--out", "mixed", "--json")
    assert answer.code == 0, answer.err
    trained = json.loads(answer.out)["evaluation"]
    found = figures(regard, "mixed")
    assert found["nats_per_token"] == pytest.approx(trained["nats_per_token"], rel=1e-6)
    entries = json.loads(regard("knn", "stats", "store", "--json").out)["entries"]
    said = {"folder": str(store.absolute()), "entries": entries, "k": 4, "own_entries_left_out": True}
    assert found["datastore"] == said
    again = figures(regard, "mixed", "--datastore", "store")
    assert again.pop("datastore") == {**found.pop("datastore"), "folder": "store"}
    assert again == found
    assert figures(regard, "mixed", "--knn.own")["nats_per_token"] != found["nats_per_token"]
    assert figures(regard, "mixed", "--knn.k", "2")["nats_per_token"] != found["nats_per_token"]
    Path("two.txt").write_text("1 is\n12 is followed\n")

    assert "other keys" not in answer.err
    text = words[words.index("--task.corpus") + 1]
    shorter = regard("evaluate", "mixed", "--corpus", text, "--length", "5")
    assert "and this text is read in windows of 5: the same tokens have other keys" in " ".join(shorter.err.split())

    one = ["generate", "mixed", "1 is", "--max-new-tokens", "12", "--temperature", "0"]
    assert regard(*one).code == 0
    assert regard(*one).out == regard(*one, "--datastore", "store").out == regard(*one, "--lookup", "3").out
    lines = regard("generate", "mixed", "--batch", "two.txt", "--max-new-tokens", "12", "--temperature", "0")
    assert json.loads(lines.out.splitlines()[0])["text"] == regard(*one).out.removesuffix("\n")

    for more, code, said in (
        (["evaluate", "mixed", "--knn.lam", "0.5"], 2, "by a gate that was trained: --knn.lam is for a model without"),
        (["evaluate", "mixed", "--knn.probes", "2"], 2, "--knn.probes is of an index"),
        (["evaluate", "mixed", "--datastore", "base"], 2, "base is no datastore"),
        (["evaluate", "mixed", "--knn.k", "99999"], 6, "k=99999 neighbours, and the datastore has"),
        (
            ["knn", "build", "two.txt", "--model", "mixed", "--out", "more"],
            2,
            "this one mixes in the neighbours of another datastore",
        ),
        ([*one, "--cache", "h2o(budget=9)"], 2, "without a memory"),
    ):
        answer = regard(*more)
        assert (answer.code, said in answer.err) == (code, True), (more, answer.err)
    assert not Path("more").exists()


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(regard, store, words):
    """Its last checkpoint is taken away; also where memories are carried from window to window."""
    assert regard(*words, *BESIDE, "--out", "whole").code == 0
    assert regard(*words, *BESIDE, "--carry", "--out", "carried").code == 0
    for folder in ("whole", "carried"):
        last = newest(Path(folder) / "checkpoints")[0]
        assert last is not None
        for path in (Path(folder) / "checkpoints").glob("step-00000004*"):
            for file in path.iterdir():
                file.unlink()
            path.rmdir()
        answer = regard("train", "--resume", folder)
        assert answer.code == 0, answer.err
        again = newest(Path(folder) / "checkpoints")[0]
        assert again is not None
        assert again.progress.step == last.progress.step == 4
        assert all((x == again.model[name]).all() for name, x in last.model.items())


def test_what_cannot_be_trained_is_named(regard, store, words, text):
    Path("other.txt").write_text(text.read_text() + "more\n")
    bpe = ["--task.tokenizer", "bpe", "--task.vocab-size", "300"]
    for more, code, said in (
        ([], 2, "model.neighbours=4 and training.datastore=None go together"),
        (["--datastore", "store"], 2, "datastore and datastore_model go together"),
        ([*BESIDE, "--model.neighbours", "0"], 2, "model.neighbours=0 and training.datastore="),
        (
            ["--datastore", "store", "--datastore-model", "nobody"],
            2,
            "there is no nobody, the model that a datastore is read with",
        ),
        (["--datastore", "base", "--datastore-model", "base"], 2, "base is no datastore"),
        ([*BESIDE, *bpe], 4, "made with another tokenizer"),
        ([*BESIDE, "--model.neighbours", "99999"], 6, "k=99999 neighbours"),
    ):
        answer = regard(*words, *more, "--out", "never")
        assert (answer.code, said in answer.err) == (code, True), (more, answer.err)
        assert not Path("never").exists()
    assert regard(*words, *BESIDE, "--out", "mixed").code == 0
    assert "pass beside=" in regard_error("mixed")
    assert regard("knn", "build", "--model", "base", "other.txt", "--out", "store", "--add").code == 0
    answer = regard("train", "--resume", "mixed", "--steps", "6")
    assert (answer.code, "other data" in answer.err) == (4, True), answer.err
    assert regard("evaluate", "mixed").code == 0  # the text is what it was, and any datastore may be read beside it
    damaged = next(store.glob("*.keys"))
    damaged.write_bytes(damaged.read_bytes()[::-1])
    for words in (["evaluate", "mixed"], ["generate", "mixed", "1"], ["train", "--resume", "mixed", "--steps", "6"]):
        answer = regard(*words)
        assert (answer.code, f"{damaged.name} is damaged" in answer.err) == (4, True), answer.err


def test_what_was_moved_away_is_named(regard, store, words):
    """And is read again from where it is, or by a link."""
    assert regard(*words, *BESIDE, "--out", "mixed").code == 0
    resumed = ["train", "--resume", "mixed", "--steps", "5"]
    away = store.rename("away")
    answer = regard("evaluate", "mixed")
    assert (answer.code, "say where it is with --datastore" in answer.err) == (2, True), answer.err
    answer = regard(*resumed)
    assert (answer.code, "the datastore of this run; put it back" in answer.err) == (2, True), answer.err
    assert regard("evaluate", "mixed", "--datastore", "away").code == 0
    store.symlink_to(away.absolute())
    assert regard(*resumed).code == 0
    Path("base").rename("gone")
    for command in (["evaluate", "mixed"], ["train", "--resume", "mixed", "--steps", "6"]):
        answer = regard(*command)
        assert (answer.code, "the model that a datastore is read with" in answer.err) == (2, True), answer.err


def regard_error(run: str) -> str:
    """What Python says that is not told where the datastore is opened."""
    from regard.core.errors import ConfigError
    from regard_lab.training import evaluate

    assert load(run).model.config.neighbours == 4  # type: ignore[union-attr]
    with pytest.raises(ConfigError) as caught:
        evaluate(run)
    return str(caught.value)
