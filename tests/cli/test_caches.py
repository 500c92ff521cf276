"""regard evaluate and regard generate with a cache policy, and generate with guesses from the text."""

import json
from pathlib import Path

import pytest

from regard.core.errors import ConfigError
from regard.models import LanguageModel
from regard_lab.benchmark import cache
from regard_lab.tasks.config import TextConfig
from regard_lab.tasks.corpus import open_corpus
from regard_lab.training import load


def nats(regard, run, *words: str) -> float:
    answer = regard("evaluate", run, "--json", *words)
    assert answer.code == 0, answer.err
    return json.loads(answer.out)["nats_per_token"]


def test_a_policy_decides_what_is_kept(regard, run, monkeypatch):
    """One that nothing exceeds changes nothing; one slot of 32 does, in both commands."""
    assert nats(regard, run, "--cache", "h2o(budget=64)") == pytest.approx(nats(regard, run), rel=1e-6)
    assert nats(regard, run, "--cache", "streaming(budget=2, sinks=1)") != pytest.approx(nats(regard, run), rel=1e-4)
    asked = []
    reduce = LanguageModel.reduce_cache
    monkeypatch.setattr(LanguageModel, "reduce_cache", lambda model, spec: (asked.append(spec), reduce(model, spec)))
    words = ["generate", run, "12 is followed by", "--max-new-tokens", "20", "--temperature", "0"]
    plain = regard(*words)
    assert regard(*words, "--cache", "key_norm(budget=100)").out == plain.out
    assert regard(*words, "--cache", "streaming(budget=2, sinks=1)").code == 0
    assert asked == ["key_norm(budget=100)", "streaming(budget=2, sinks=1)"]


def test_guesses_change_no_token(regard, run, monkeypatch):
    words = [
        "generate",
        run,
        "12 is followed by 13.\n13 is followed by",
        "--max-new-tokens",
        "24",
        "--temperature",
        "0",
    ]
    plain = regard(*words)
    assert plain.code == 0, plain.err
    calls = []
    hidden = LanguageModel.hidden

    def counted(model, tokens, **given):
        calls.append(tokens.shape[1])
        return hidden(model, tokens, **given)

    monkeypatch.setattr(LanguageModel, "hidden", counted)
    looked = regard(*words, "--lookup", "6")
    assert looked.out == plain.out
    assert max(calls[1:]) > 1  # guesses were checked
    Path("two.txt").write_text("12 is\n13 is followed\n")
    batch = ["generate", run, "--batch", "two.txt", "--max-new-tokens", "9", "--temperature", "0"]
    assert regard(*batch, "--lookup", "4").out == regard(*batch).out


def test_what_does_not_go_together_is_named(regard, run):
    one = ["generate", run, "1 is", "--max-new-tokens", "3"]
    Path("folder").mkdir()
    for words, code, said in (
        ([*one, "--cache", "h20(budget=9)"], 2, "unknown cache 'h20': did you mean 'h2o'"),
        ([*one, "--cache", "h2o(budgets=9)"], 2, "--cache h2o(budgets=9)"),
        ([*one, "--cache", "h2o(budget=0)"], 2, "budget"),
        ([*one, "--cache", "snapkv(budget=9)"], 2, "keeps everything until it is told to choose"),
        (["evaluate", run, "--cache", "snapkv(budget=9)"], 2, "keeps everything until it is told to choose"),
        (["evaluate", run, "--cache", "folder"], 2, "a folder of token files it is --token-files"),
        ([*one, "--lookup", "3"], 2, "--lookup 3 guesses the likeliest tokens; add --temperature 0"),
        ([*one, "--lookup", "-1", "--temperature", "0"], 2, "must be at least 0"),
        (["evaluate", run, "--knn.k", "3"], 2, "--knn.k goes with --datastore"),
    ):
        answer = regard(*words)
        assert (answer.code, said in answer.err) == (code, True), (words, answer.err)


def test_a_run_is_measured_on_text_that_it_was_not_trained_on_first(regard, run, monkeypatch):
    read = []

    def measure(model, config, text, encode, tell):
        read.append(text)
        raise ConfigError("seen")

    monkeypatch.setattr(cache, "measure", measure)
    assert "seen" in regard("cache", run, "--budgets", "8", "--context", "16").err
    task = load(run).config.task
    assert isinstance(task, TextConfig)
    parts = {one.group: one.text for one in open_corpus(task).parse()}
    assert read[0].startswith(parts["valid"] + parts["test"])
