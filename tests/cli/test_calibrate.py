"""Calibrating exits: what is found, said, kept, used again and refused."""

import json

import numpy as np
import pytest
import torch

from regard.benchmark.exits import drawn, measure, passages
from regard.cli.main import main
from regard.integrations.exits import put, stored
from regard.tasks.corpus import open_corpus
from regard.testing.compare import assert_close
from regard.training import load
from regard.training.exit_heads import fit_light_heads

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
    shown = regard("generate", with_exits, "12 is", "--exits", "calibrated", "--show-depth", "--max-new-tokens", "9")
    numbers, means = shown.out.splitlines()[-2:]
    taken = [int(one) for one in numbers.removeprefix("blocks of each token: ").split()]
    assert len(taken) == 9
    assert means == f"mean {np.mean(taken):.2f} of 3 blocks"
    greedy = ("generate", with_exits, "12 is", "--exits", "calibrated", "--json", "--temperature", "0")
    one, many = (json.loads(regard(*greedy, *more).out) for more in ((), ("--lookup", "4")))
    assert many == one, "guessed tokens take the blocks that they take one by one"
    full, early = (
        json.loads(regard("evaluate", with_exits, "--limit", "4", "--json", *more).out)
        for more in ((), ("--exits", "calibrated"))
    )
    assert full["nats_per_token"] != early["nats_per_token"]
    again = regard("calibrate", with_exits, "--risk", "0.9", *GRID)
    assert again.code == 2
    assert "exists, and nothing is ever overwritten" in again.err
    kept = with_exits / "exits" / "calibration.json"
    kept.write_text(kept.read_text().replace('"threshold": 0.01', '"threshold": 0.0'))
    broken = regard("generate", with_exits, "12 is", "--exits", "calibrated")
    assert broken.code == 4
    assert "calibration.json is damaged" in broken.err


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
    measured = measure(run.model, drawn(items, 60, seed=seed)[0], (0.9, 0.1, 0.01), loss=loss)
    for name, wanted in (("loss", measured.losses), ("nats", measured.nats), ("layers", measured.layers)):
        assert [one[name] for one in found["curve"]] == pytest.approx(wanted.mean(0).tolist(), rel=1e-6), name


def test_what_is_not_certified_lets_no_token_leave(regard, with_exits):
    answer = regard("calibrate", with_exits, "--risk", "0.05", *GRID, "--thresholds", "0", "--out", "kept", "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert found["calibrated"]["threshold"] is None
    assert "certif" in found["guarantee"] + answer.err
    assert {taken for row in found["sample"] for _, taken in row} == {3}
    got = json.loads(regard("generate", with_exits, "12 is", "--exits", "kept", "--json").out)
    assert set(got["layers"]) == {3}


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
        (("--passages", "60", "--search", "bonferroni"), "passages or more"),
        (("--passages", "100000"), "and 100000 are asked for"),
        (("--test", "binomial"), "--loss last"),
        (("--head-passages", "9"), "--heads light"),
        (("--thresholds", "0.5", "0.9"), "thresholds must fall"),
    ],
)
def test_what_makes_no_sense_is_refused(regard, with_exits, words, said):
    answer = regard("calibrate", with_exits, "--out", "nowhere", "--threads", "1", *words)
    assert answer.code in (2, 3), answer.err
    assert said in answer.err


def test_depth_is_shown_where_there_is_one(regard, run):
    answer = regard("generate", run, "12 is", "--show-depth")
    assert answer.code == 2
    assert "every token of this model takes every block" in answer.err
    assert regard("generate", run, "12 is", "--exits", "calibrated").code == 2
