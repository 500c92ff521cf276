"""Calibrating exits: what is found, said, kept, used again and refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import regard as package
from regard.cli.main import main
from regard.core.errors import UnsupportedError
from regard.models import LanguageModel
from regard.models.packed import pack
from regard.testing.compare import assert_close
from regard_lab.benchmark.exits import drawn, measure, passages
from regard_lab.networks.exits import install, put, shares, stored, text_facts
from regard_lab.tasks import build_task
from regard_lab.tasks.base import IGNORE
from regard_lab.tasks.config import TextConfig
from regard_lab.tasks.corpus import open_corpus
from regard_lab.training import load
from regard_lab.training.evaluation import measured
from regard_lab.training.exit_heads import fit_light_heads

GRID = ["--thresholds", "0.9", "0.1", "0.01", "--passages", "60", "--length", "8", "--threads", "1"]


@pytest.fixture(scope="module")
def with_exits(tmp_path_factory):
    """A run of three blocks that tokens may leave, on a text that is easy."""
    path = tmp_path_factory.mktemp("exits") / "numbers.txt"
    path.write_text("".join(f"{number} is followed by {number + 1}.\n" for number in range(4000)), encoding="utf-8")
    words = ["train", "--model.dim", "16", "--model.layers", "3", "--model.heads", "2", "--task.length", "32"]
    words += ["--model.depth", "early_exit", "--batch-size", "4", "--warmup", "1", "--threads", "1", "--steps", "30"]
    words += ["--task.corpus", str(path), "--task.cache", str(path.parent / "cache")]
    assert main([*words, "--out", str(path.parent / "run")]) == 0
    return path.parent / "run"


def test_a_run_keeps_its_threshold_and_uses_it(regard, with_exits):
    answer = regard("calibrate", with_exits, "--risk", "0.9", *GRID, "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert found["calibrated"]["threshold"] == 0.01
    assert found["trained_on"] is False
    assert found["guarantee"].startswith("With a probability of at least 0.95 over the draw of the 60 calibration")
    assert "at most 0.9 for passages of 8 tokens drawn like these from the valid part of" in found["guarantee"]
    means = [one["layers"] for one in found["curve"]]
    assert means == sorted(means, reverse=True)
    assert [sum(one["exits"]) for one in found["curve"]] == [60 * 8] * 3
    for one in found["curve"]:
        assert np.average(np.arange(1, 4), weights=one["exits"]) == pytest.approx(one["layers"])
    got = json.loads(regard("generate", with_exits, "12 is", "--exits", "calibrated", "--json").out)
    assert len(got["layers"]) == 200
    assert got["mean_layers"] == pytest.approx(np.mean(got["layers"]))
    assert min(got["layers"]) < got["of_layers"] == 3
    plain = json.loads(regard("generate", with_exits, "12 is", "--json").out)
    assert plain["layers"] == [3] * 200, "without --exits a run is as trained"
    greedy = ("generate", with_exits, "12 is", "--exits", "calibrated", "--json", "--temperature", "0")
    one, many = (json.loads(regard(*greedy, *more).out) for more in ((), ("--lookup", "4")))
    assert many == one, "guessed tokens take the blocks that they take one by one"
    full, early = (
        json.loads(regard("evaluate", with_exits, "--limit", "4", "--json", *more).out)
        for more in ((), ("--exits", "calibrated"))
    )
    assert full["nats_per_token"] != early["nats_per_token"]
    assert full["depth"] == {"mean_layers": 3.0, "of_layers": 3, "threshold": 1.0}
    assert early["depth"] == {
        "mean_layers": pytest.approx(blocks_of(with_exits, 4)),
        "of_layers": 3,
        "threshold": 0.01,
        "operations": pytest.approx(early["depth"]["operations"]),
        "calibrated_on_this_text": True,
    }
    assert 1 < early["depth"]["mean_layers"] < 3
    assert early["depth"]["operations"] > 1, "two output layers of 257 tokens cost more than blocks of width 16"
    valid = regard("evaluate", with_exits, "--limit", "4", "--exits", "calibrated")
    assert f"{early['depth']['mean_layers']:.2f} of 3" in valid.out
    assert "calibrated on passages of this text" in valid.err
    test = regard("evaluate", with_exits, "--limit", "4", "--exits", "calibrated", "--split", "test")
    assert "calibrated on passages" not in test.err
    again = regard("calibrate", with_exits, "--risk", "0.9", *GRID)
    assert again.code == 2
    assert "exists; choose another name, or remove it: nothing is ever overwritten" in again.err
    kept = with_exits / "exits" / "calibration.json"
    kept.write_text(kept.read_text().replace('"threshold": 0.01', '"threshold": 0.0'))
    broken = regard("generate", with_exits, "12 is", "--exits", "calibrated")
    assert broken.code == 4
    assert "calibration.json is damaged" in broken.err


def blocks_of(run, limit: int) -> float:
    """The mean blocks of the targets of a run's own text, window by window."""
    loaded = package.load(run)
    install(loaded.model, run / "exits")
    examples = build_task(loaded.config.task, seed=0, tokenizer=loaded.tokenizer).examples("valid")
    steps = []
    for at in measured(len(examples), limit):
        example = examples[at]
        taken = loaded.model(torch.from_numpy(example.inputs)[None]).steps[0]
        steps += taken[torch.from_numpy(example.targets) != IGNORE].tolist()
    return float(np.mean(steps))


@pytest.mark.parametrize(
    ("corpus", "cut", "split", "shared"),
    [
        ("a.txt", {}, "valid", True),
        ("a.txt", {}, "test", False),
        ("a.txt", {}, None, True),
        ("a.txt", {"holdout": 0.2}, "test", True),
        ("folder/a.txt", {}, "valid", True),
        ("b.txt", {}, "valid", False),
    ],
)
def test_the_text_of_a_calibration_is_known_again(tmp_path, monkeypatch, corpus, cut, split, shared):
    """By its files, whatever holds them, and by how it is cut."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for name, text in (("a.txt", "one\n"), ("folder/a.txt", "one\n"), ("b.txt", "two\n")):
        Path(name).write_text(text)
    kept = {"corpus": text_facts(TextConfig(corpus="a.txt"), "valid")}
    assert shares(kept, TextConfig(corpus=corpus, **cut), split) is shared
    assert shares({}, TextConfig(corpus=corpus, **cut), split) is None, "an older calibration does not say"


def passages_of(run, split: str | None) -> np.ndarray:
    """Those of 8 tokens in a part of the text that a run was trained on."""
    corpus = open_corpus(run.config.task)
    part = corpus.splits(run.config.task.holdout)
    kept = [one.text for one in corpus.parse() if split is None or part[one.group] == split]
    return passages([run.tokenizer.document(text) for text in kept], 8)


@pytest.mark.parametrize(
    ("words", "loss", "split", "seed"),
    [
        ((), "disagreement", "valid", 0),
        (("--loss", "accuracy"), "accuracy", "valid", 0),
        (("--loss", "last", "--test", "binomial"), "last", "valid", 0),
        (("--split", "train"), "disagreement", "train", 0),
        (("--seed", "3"), "disagreement", "valid", 3),
    ],
)
def test_what_is_asked_is_what_is_measured(regard, with_exits, words, loss, split, seed):
    """The loss, the part of the text and the draw, as the public functions give them."""
    answer = regard("calibrate", with_exits, "--risk", "0.9", *GRID, *words, "--out", "kept", "--json")
    assert answer.code == 0, answer.err
    found, run = json.loads(answer.out), load(with_exits)
    items = passages_of(run, split)
    assert found["found"] == len(items)
    curve = measure(run.model, drawn(items, 60, seed=seed)[0], (0.9, 0.1, 0.01), loss=loss)
    for name, wanted in (("loss", curve.losses), ("nats", curve.nats), ("layers", curve.layers)):
        assert [one[name] for one in found["curve"]] == pytest.approx(wanted.mean(0).tolist(), rel=1e-6), name


def test_trained_exits_are_tested_down_to_every_token_leaving_at_once(regard, with_exits):
    few = ("--passages", "20", "--length", "8", "--risk", "0.9", "--threads", "1")
    told = regard("calibrate", with_exits, *few, "--out", "first")
    assert told.err.splitlines()[0] == "measuring 20 passages at 20 thresholds, 16 at a time"
    test = re.search("the same command with (.*) --out FOLDER", told.out)
    assert test is not None
    tested = json.loads(regard("calibrate", with_exits, *few, *test[1].split(), "--out", "test", "--json").out)
    assert (len(tested["curve"]), tested["text"].split()[1]) == (1, "test")
    answer = regard("calibrate", with_exits, *few, "--out", "kept", "--json")
    assert answer.code == 0, answer.err
    lowest = json.loads(answer.out)["curve"][-1]
    assert (lowest["threshold"], lowest["layers"]) == (0.0, 1.0)


@pytest.mark.parametrize("heads", ["own", "light"])
def test_a_decoder_without_exits_is_given_some(regard, text, tmp_path, heads, monkeypatch):
    words = ["train", "--model.dim", "8", "--model.layers", "2", "--model.heads", "2", "--task.length", "32"]
    words += ["--batch-size", "4", "--warmup", "1", "--threads", "1", "--steps", "2", "--task.corpus", text]
    assert regard(*words, "--out", "plain", "--task.cache", tmp_path / "cache").code == 0
    refused = regard("calibrate", "plain", "--risk", "0.9", *GRID)
    assert refused.code == 2
    assert "a model of depth='fixed' has no exits" in refused.err
    asked = ["--risk", "0.99", "--corpus", text, "--thresholds", "0.9", "0.1", "--passages", "60", "--length", "8"]
    answer = regard("calibrate", "plain", "--heads", heads, *asked, "--out", "kept", "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert found["heads"] == heads
    assert found["trained_on"] is True
    assert "trained on some of these passages" in answer.err
    if heads == "light":
        run = load(tmp_path / "plain")
        fitting, items = drawn(passages_of(run, None), found["fitted"], 60, seed=0)
        assert len(fitting) == 24
        light = fit_light_heads(run.model, torch.from_numpy(fitting[:, :-1]))
        for name, weight in stored(tmp_path / "kept")[1].items():
            assert_close(weight, light.get_parameter(name), tolerance=1e-5, what=f"{name}, fitted to other passages")
        put(run.model, light)
        losses = measure(run.model, items, (0.9, 0.1)).losses.mean(0)
        assert [one["loss"] for one in found["curve"]] == pytest.approx(losses.tolist())
    got = json.loads(regard("generate", "plain", "12 is", "--exits", "kept", "--json", "--max-new-tokens", "5").out)
    assert len(got["layers"]) == 5
    del asked[4:7]
    assert "The last threshold passed too" in regard("calibrate", "plain", "--heads", heads, *asked).err
    other = regard("train", *words[1:], "--seed", "1", "--out", "other", "--task.cache", tmp_path / "cache")
    assert other.code == 0
    refused = regard("generate", "other", "12 is", "--exits", "kept")
    assert refused.code == 4
    assert "calibrated for other weights" in refused.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--risk", "0"), "risk must lie between 0 and 1"),
        (("--confidence", "1.0"), "confidence must lie between 0 and 1"),
        (("--passages", "20"), "that takes 59 passages or more"),
        (("--passages", "100000"), "(--passages, 59 at least)"),
        (("--test", "binomial"), "--loss last"),
        (("--head-passages", "9"), "--heads light"),
        (("--thresholds", "0.5", "0.9"), "thresholds must fall"),
    ],
)
def test_what_makes_no_sense_is_refused(regard, with_exits, words, said):
    answer = regard("calibrate", with_exits, "--out", "nowhere", "--threads", "1", *words)
    assert answer.code in (2, 3), answer.err
    assert said in answer.err


@pytest.mark.parametrize(
    "beside",
    [("--weights", "int8"), ("--cache", "h2o(budget=4)"), ("--datastore", "store")],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("verb", ["generate", "evaluate"])
def test_a_promise_is_not_used_for_another_model(regard, with_exits, verb, beside):
    """Nothing is read: there is no such datastore, and no calibration."""
    answer = regard(verb, with_exits, *(["12 is"] if verb == "generate" else []), "--exits", "nowhere", *beside)
    assert (answer.code, "--exits" in answer.err, "leave one out" in answer.err) == (2, True, True)


@pytest.mark.parametrize("changed", ["packed", "cache"])
def test_a_calibration_is_not_installed_in_another_model(regard, with_exits, changed, tmp_path):
    assert regard("calibrate", with_exits, "--risk", "0.9", *GRID, "--out", tmp_path / "found").code == 0
    model = load(with_exits).model
    assert isinstance(model, LanguageModel)
    install(model, tmp_path / "found")
    if changed == "packed":
        pack(model)
    else:
        model.reduce_cache("h2o(budget=4)")
    with pytest.raises(UnsupportedError, match="weights as they are and everything kept"):
        install(model, tmp_path / "found")


def test_a_run_without_a_calibration_has_no_exits(regard, run):
    assert regard("generate", run, "12 is", "--exits", "calibrated").code == 2


def test_the_reason_against_exits_comes_first(regard, text, tiny):
    words = ["train", *tiny, "--steps", "1", "--task.corpus", text, "--task.cache", "cache"]
    reasons = {
        "transformer_xl": (["--model.max-length", "16", "--model.layers", "2"], "it has a memory"),
        "universal_transformer": (["--model.layers", "1"], "depth='universal(steps=8)'"),
        "plain": ([], "it has one block"),
    }
    for name, (more, reason) in reasons.items():
        preset = [] if name == "plain" else ["--preset", name]
        assert regard(*words, *preset, *more, "--out", name).code == 0
        for heads in ([], ["--heads", "own"], ["--heads", "light"]):
            answer = regard("calibrate", name, *GRID, *heads, "--out", "never")
            assert answer.code == 2
            assert reason in answer.err, (name, heads, answer.err)
            assert "--heads" not in answer.err
