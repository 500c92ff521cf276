"""`regard bench` in this process; timing in one of its own is tested where it is done."""

import importlib
import json
import os

import pytest

from regard.core.errors import ConfigError
from regard_lab.benchmark import sweep
from regard_lab.cli._numbers import parse_numbers


def test_times_are_beside_exact_attention(regard, monkeypatch):
    monkeypatch.setattr(sweep, "sweep", sweep.measure)
    words = ["linear", "--lengths", "16:32", "--heads", "2", "--key-dim", "8", "--rounds", "1", "--threads", "1"]
    answer = regard("bench", *words)
    assert answer.code == 0
    assert "times SDPA" in answer.out
    assert "(1, 2, tokens, 8), float32, 1 threads" in answer.out
    found = json.loads(regard("bench", *words, "--passes", "forward", "decode", "--json").out)
    shown = {(row["spec"], row["kind"], row["length"]) for row in found["rows"]}
    rows = (("linear", "forward"), ("linear", "decode"), (sweep.SDPA, "forward"))
    assert shown == {(*row, length) for row in rows for length in (16, 32)}
    assert all(row["seconds"] > 0 for row in found["rows"])


def test_figures_that_cannot_be_trusted_are_marked(regard, monkeypatch):
    busy = "the machine was busy: so it was"

    def timed(config):
        rows = [(sweep.SDPA, 32, None), ("linear", 32, None), (sweep.SDPA, 64, None), ("linear", 64, busy)]
        return [sweep.Row(spec, n, "both", 0.5, 0.4, 0.7, untrusted=why) for spec, n, why in rows]

    monkeypatch.setattr(sweep, "sweep", timed)
    answer = regard("bench", "linear", "--lengths", "32:64")
    lines = [line.split() for line in answer.out.splitlines()]
    assert ["linear", "both", "32", "500.000", "400.000", "to", "700.000", "1.00"] in lines
    assert ["linear", "both", "64", "500.000", "?", "400.000", "to", "700.000"] in lines
    assert f"1 of 4 figures, marked ?, cannot be trusted: {busy}. Time again on a quiet machine." in answer.out
    found = json.loads(regard("bench", "linear", "--lengths", "32:64", "--json").out)["rows"]
    assert [row["untrusted"] for row in found] == [None, None, None, busy]


@pytest.mark.parametrize("verb", ["bench", "accuracy", "capacity", "retrieval", "compare"])
def test_threads_are_those_of_the_environment(monkeypatch, verb):
    module = importlib.import_module(f"regard_lab.cli.{verb}")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert module.Options().threads == 3
    assert sweep.SweepConfig(("linear",), (8,)).threads == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")
    assert module.Options().threads == 5
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert module.Options().threads == len(os.sched_getaffinity(0))
    for wrong in ("0", "many", "-2"):
        monkeypatch.setenv("OMP_NUM_THREADS", wrong)
        with pytest.raises(ConfigError, match=f"OMP_NUM_THREADS is '{wrong}', which is no number of threads"):
            module.Options()


@pytest.mark.parametrize(
    ("words", "lengths"),
    [
        (["linear", "--lengths", "64", "128"], (64, 128)),
        (["--lengths", "64", "128", "linear"], (64, 128)),
        (["--lengths", "64,128", "linear"], (64, 128)),
        (["--lengths=64", "128", "1024:4096", "--heads", "2", "linear"], (64, 128, 1024, 2048, 4096)),
        (["--lengths", "64", "--heads", "2", "linear"], (64,)),
        (["linear", "--lengths", "64:256", "128"], (64, 128, 256)),
        (["linear", "--lengths", "64 256 1024"], (64, 256, 1024)),
        (["--lengths", "64, 128", "256:512 600", "linear"], (64, 128, 256, 512, 600)),
    ],
)
@pytest.mark.parametrize("verb", ["bench", "accuracy"])
def test_lengths_in_several_words(verb, words, lengths):
    module = importlib.import_module(f"regard_lab.cli.{verb}")
    options = module.parse(words)
    assert parse_numbers(options.lengths) == lengths
    assert options.specs == ("linear",)
    assert options.heads == (2 if "--heads" in words else 8)


@pytest.mark.parametrize(
    ("verb", "what", "more"),
    [
        ("bench", "lengths", ["linear"]),
        ("accuracy", "lengths", ["linear"]),
        ("rounding", "lengths", ["linear"]),
        ("cache", "budgets", ["nobody"]),
    ],
)
def test_defaults_may_be_typed_and_are_named(verb, what, more):
    module = importlib.import_module(f"regard_lab.cli.{verb}")
    default = getattr(module.Options, what)
    assert parse_numbers(getattr(module.parse([*more, f"--{what}", default]), what)) == parse_numbers(default)
    for wrong in ("8 x", "-1", "1:2:3", " "):
        with pytest.raises(ConfigError, match=f"(cannot read the|no) {what} "):
            parse_numbers(wrong, what)
