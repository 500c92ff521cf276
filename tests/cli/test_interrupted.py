"""Ctrl-C in a comparison: no traceback from any of its processes, what was done is kept, and that is said."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from regard.benchmark import comparison

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


def test_before_anything_was_written(regard, monkeypatch, tmp_path):
    def interrupted(*arguments, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "compare", interrupted)
    answer = regard("compare", "--out", str(tmp_path / "out"))
    assert (answer.code, answer.out) == (130, "")
    assert answer.err == "regard compare: interrupted; nothing was kept\n"
