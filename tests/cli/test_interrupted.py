"""Ctrl-C and SIGTERM: no traceback from any process, what was done is kept, and that and how to go on is said."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regard.cli import main
from regard_lab import report, retrieval, tokens, training

SOURCE = Path(__file__).parents[2] / "src"
WORDS = ["--shape.dim=8", "--shape.heads=1", "--recall-shape.dim=8", "--recall-shape.heads=1", "--text.length=32"]
WORDS += ["--recall.length=16", "--recall.num-pairs=2", "--lengths", "32", "--text-steps=100000", "--threads=1"]


def test_a_comparison_that_is_interrupted(tmp_path):
    """While its first process starts, which is when it has no answer of its own: Ctrl-C reaches all at once."""
    (tmp_path / "words.txt").write_text("".join(f"{n} and {n + 1} make {2 * n + 1}.\n" for n in range(900)))
    words = [*WORDS, "--text.corpus=words.txt", f"--text.cache={tmp_path / 'cache'}", "--out=out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "regard.cli.main", "compare", "uniform", *words],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("planning: up to")
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert err.splitlines()[-1] == (
        "regard compare: interrupted; the same command goes on where it stopped, with what is in out"
    )
    assert (tmp_path / "out" / "comparison.json").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_command_with_a_word(regard, monkeypatch, number, code):
    """What tidies up is passed on the way out, and the next command meets signals as this one did."""
    passed = []

    def interrupted(words):
        try:
            signal.raise_signal(number)
            passed.append("it went on")
        finally:
            passed.append("tidied up")

    monkeypatch.setattr(main, "_run", interrupted)
    answer = regard("doctor")
    assert (answer.code, passed) == (code, ["tidied up"])
    assert answer.err == ("regard doctor: interrupted; nothing is left half-written; give the same command again\n")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_signal_is_the_systems_and_one_that_is_ignored_stays_so(regard, monkeypatch):
    met = []

    def interrupted(words):
        met.append(signal.getsignal(signal.SIGTERM))
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            met.append(signal.getsignal(signal.SIGTERM))
            raise
        return 0

    monkeypatch.setattr(main, "_run", interrupted)
    assert regard("doctor").code == 143
    assert met[1] is signal.SIG_DFL
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert regard("doctor").code == 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("words", "module", "name", "said"),
    [
        (
            ["knn", "build", "{text}", "--model", "{trained}", "--out", "store"],
            retrieval,
            "build",
            "the same command goes on where it stopped, with what is in store",
        ),
        (
            ["knn", "build", "{text}", "--model", "{trained}", "--out", "store", "--index", "flat"],
            retrieval.Index,
            "save",
            "store is whole; its indices: regard knn index store --index flat",
        ),
        (
            ["tokens", "build", "{text}", "--out", "tokens"],
            tokens,
            "build",
            "the same command goes on where it stopped, with what is in tokens",
        ),
        (["train", "--resume", "{trained}"], training, "resume", "go on with regard train --resume {trained}"),
        (["train", "--steps", "1", "--out", "run"], training, "train", "nothing is left half-written; give the same"),
        (["compare", "--out", "out"], report, "compare", "nothing was kept"),
    ],
)
def test_how_to_go_on(regard, monkeypatch, trained, text, words, module, name, said, number):
    place = {"trained": str(trained), "text": str(text)}

    def stopped(*arguments, **named):
        signal.raise_signal(number)

    monkeypatch.setattr(module, name, stopped)
    answer = regard(*(word.format(**place) for word in words))
    assert answer.code == 128 + number
    assert answer.err.splitlines()[-1].startswith(f"regard {words[0]}: interrupted; {said.format(**place)}")
