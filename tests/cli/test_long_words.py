"""What is given may be of any length; a message shows its beginning and its end, and comes in time."""

import pickle
import time

import pytest

import regard
from regard.errors import ConfigError, RegardError

LONG = 100_000
SHOWN = 4000
TRAIN = ("train", "--steps", "1", "--out", "out")
WORDS = [
    ("info", "x" * LONG),
    ("info", "softmax(scale=" + "9" * LONG + ")"),
    ("info", "softmax(" + "y" * LONG + "=1)"),
    ("info", "softmax(scale='" + "z" * LONG + "')"),
    ("info", "softmax" + "(" * LONG),
    ("info", "pattern(rule='" + "window(8) & " * (LONG // 12) + "')"),
    ("check", "a." * (LONG // 2) + "b:C"),
    ("compare", "softmax", "x" * LONG, "--out", "out"),
    ("list", "--supports", "x" * LONG),
    ("claims", "x" * LONG),
    ("x" * LONG,),
    ("generate", "x" * LONG),
    ("report", "x" * LONG),
    (*TRAIN, "--model.attention", "x" * LONG),
    (*TRAIN, "--model.position", "x" * LONG),
    (*TRAIN, "--model.dim", "9" * LONG),
    (*TRAIN, "--model.dim", "x" * LONG),
    (*TRAIN, "--" + "x" * LONG, "1"),
    (*TRAIN, "--task.corpus", "x" * LONG),
    (*TRAIN, "--config", "x" * LONG),
    (*TRAIN, "--model.dim", str(10**12 + 1), "--model.heads", "2"),
    (*TRAIN, "--model.position", f"t5_bias(max_distance={10**12})"),
]


@pytest.mark.parametrize("words", WORDS, ids=lambda words: " ".join(words)[:40])
def test_messages_do_not_repeat_long_words(regard, words):
    began = time.process_time()
    answer = regard(*words)
    assert answer.code in (2, 3, 4, 6)
    assert 0 < len(answer.err) < SHOWN, answer.err[:200]
    assert time.process_time() - began < 8, "one core; what is quadratic takes minutes"


@pytest.mark.parametrize(
    "text",
    [
        'attention = ["' + "x" * LONG + '"]',
        "dim = " + "9" * LONG,
        "dim = " + "9" * 4000,
        "x" * LONG + " = 1",
        'mlp = "' + "x" * LONG + '"',
    ],
    ids=["attention", "number", "shorter number", "name", "choice"],
)
def test_values_of_a_configuration(regard, tmp_path, text):
    (tmp_path / "c.toml").write_text(f"[model]\n{text}\n")
    answer = regard(*TRAIN, "--config", "c.toml")
    assert answer.code == 2
    assert 0 < len(answer.err) < SHOWN


def test_errors_of_the_library():
    with pytest.raises(ConfigError) as caught:
        regard.build("softmax(scale='" + "x" * LONG + "')", regard.Heads(count=2, key_dim=4))
    assert len(str(caught.value)) < SHOWN
    assert "characters left out" in str(caught.value)


def test_both_ends_of_a_long_line_are_shown_and_short_lines_stay():
    said = str(RegardError("first line\ncannot read " + "(" * LONG + ": write a name\nlast line"))
    assert said.startswith("first line\ncannot read ((((")
    assert said.endswith("((((: write a name\nlast line")
    assert len(said) < 1600
    assert str(pickle.loads(pickle.dumps(RegardError(said)))) == said
    whole = "\n".join(f"{number}: a problem" for number in range(1000))
    assert str(RegardError(whole)) == whole
