"""`regard bench` in this process; timing in one of its own is tested where it is done."""

import json

import pytest

from regard.benchmark import sweep


def test_times_are_beside_exact_attention_and_what_was_counted(regard, monkeypatch):
    monkeypatch.setattr(sweep, "sweep", lambda config, *, fixed_allocation: sweep.measure(config))
    words = ["linear", "--lengths", "16:32", "--heads", "2", "--key-dim", "8", "--rounds", "1", "--threads", "1"]
    answer = regard("bench", *words, "--counted")
    assert answer.code == 0
    assert "times SDPA" in answer.out
    assert "(1, 2, tokens, 8), float32, 1 threads" in answer.out
    found = json.loads(regard("bench", *words, "--passes", "forward", "decode", "--json").out)
    shown = {(row["spec"], row["kind"], row["length"]) for row in found["rows"]}
    rows = (("linear", "forward"), ("linear", "decode"), (sweep.SDPA, "forward"))
    assert shown == {(*row, length) for row in rows for length in (16, 32)}
    assert all(row["seconds"] > 0 and row["default_seconds"] > 0 for row in found["rows"])
    assert found["counted"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["performer", "--redraws", "8"], "--redraws"),
        (["performer", "--out", "x"], "--out"),
        (["performer", "--lengths", "x"], "cannot read the lengths 'x'"),
        (["performer", "--threads", "0", "--key-dim", "0"], "key_dim must be at least 1, got 0\nthreads must be"),
        ([], "name what to time"),
        (
            ["performer", "--accuracy", "--redraws", "8"],
            "--accuracy of version 0.1 is a command of its own: regard accuracy performer --redraws 8",
        ),
        (
            ["local(window=3)", "--capacity"],
            "--capacity of version 0.1 is a command of its own: regard capacity 'local(window=3)'",
        ),
        (["--retrieval"], "--retrieval of version 0.1 is a command of its own: regard retrieval"),
    ],
)
def test_bad_words(regard, words, message):
    answer = regard("bench", *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
