import io

import pytest

from regard_lab.training import train
from regard_lab.training.progress import Display


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_without_a_terminal(small, tmp_path, capsys):
    stream = io.StringIO()
    with Display("run", stream=stream) as display:
        train(small, tmp_path / "run", on_progress=display)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5  # steps 5, 10 and 12, evaluations at 6 and 12
    assert all(line.startswith("run: step ") for line in lines)
    assert "\x1b" not in stream.getvalue()
    assert "tokens/s" in lines[0]
    assert " left" in lines[0]
    assert "valid: " in lines[1]
    assert "accuracy" in lines[1]
    assert capsys.readouterr().out == ""


def test_a_bar_on_a_terminal(small, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with Display("run", stream=stream) as display:
        train(small, tmp_path / "run", on_progress=display)
    text = stream.getvalue()
    assert "12/12" in text
    assert "tokens/s" in text
    assert "valid: " in text
    assert capsys.readouterr().out == ""


def test_bits_per_byte_where_there_are_bytes():
    stream = io.StringIO()
    display = Display(stream=stream)
    event = {"kind": "evaluate", "step": 3, "split": "valid", "nats_per_token": 1.5, "accuracy": 0.25}
    display({**event, "bits_per_byte": 2.125})
    display({**event, "bits_per_byte": None})
    assert stream.getvalue().splitlines() == [
        "train: step 3  valid: 1.5000 nats, 2.1250 bits per byte",
        "train: step 3  valid: 1.5000 nats, accuracy 0.250",
    ]


def test_time_left(monkeypatch):
    clock = iter([100.0, 103.0, 106.0])
    monkeypatch.setattr("regard_lab.training.progress.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    display = Display(stream=stream)
    for step in (41, 42, 43):
        display({"kind": "step", "step": step, "steps": 100})
    line = {"kind": "train", "step": 43, "loss": 1.0, "timing": {"tokens_per_second": 1234.5}}
    display(line)
    assert stream.getvalue() == "train: step 43  loss 1.0000 nats  1,234 tokens/s  2:51 left\n"


def test_a_long_evaluation_says_how_far_it_is(monkeypatch):
    """As of the weights that a run starts from, before any step: in the bar, or a line every ten seconds."""
    clock = iter([100.0, 110.0, 119.0])
    monkeypatch.setattr("regard_lab.training.progress.time.monotonic", lambda: next(clock))
    with Display(stream=(stream := io.StringIO())) as display:
        for done in (16, 32, 48):
            display({"kind": "evaluating", "step": 0, "done": done, "examples": 4000})
    assert stream.getvalue() == "train: evaluating: 32 of 4,000 examples\n"


def test_every_batch_of_an_evaluation_is_told(small, tmp_path):
    told = []
    train(small, tmp_path / "run", on_progress=lambda event: told.append(event) if "done" in event else None)
    assert [event["step"] for event in told if event["done"] == event["examples"]] == [6, 12]


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_an_interruption_says_how_to_go_on(stream):
    with Display(stream=stream) as display:
        display({"kind": "interrupted", "step": 7, "signal": "SIGTERM"})
    assert "SIGTERM: saved at step 7; continue with --resume" in stream.getvalue()


def test_a_training_that_taught_nothing_is_told():
    with Display(stream=(stream := io.StringIO())) as display:
        display({"kind": "untaught", "step": 6, "only": ["*.memory"]})
    assert "nothing has learnt in 6 steps: no loss reached what training.only names" in stream.getvalue()
