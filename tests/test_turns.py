"""The comparison of two trees in turns says slower where it is, and nothing where turns only scatter."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "evidence" / "benchmarks"
sys.path.insert(0, str(FOLDER))  # as where the script is run
spec = importlib.util.spec_from_file_location("turns", FOLDER / "turns.py")
turns = importlib.util.module_from_spec(spec)
spec.loader.exec_module(turns)
import _harness as harness  # noqa: E402  # beside the script


@pytest.mark.parametrize(("count", "left"), [(1, 0), (3, 0), (6, 0), (9, 1), (15, 3), (20, 5), (31, 9), (101, 40)])
def test_the_interval_is_that_of_the_sign_test(count, left):
    assert turns.interval(list(range(count))[::-1]) == (left, count - 1 - left)


def test_few_turns_have_a_range_and_no_interval():
    """Least and greatest of five values hold the median 15 times of 16."""
    found = {"a": [2.0, 4.0, 6.0, 8.0, 10.0], "b": [1.0] * 5}
    assert harness.ratio(found, "a", "b") == "6.00 (range 2.00 to 10.00)"
    assert harness.ratio({"a": [*found["a"], 6.0], "b": [1.0] * 6}, "a", "b") == "6.00 (2.00 to 10.00)"


class Side:
    """Answers as a process does, with operations and seconds by row; None: the row fails."""

    def __init__(self, operations, seconds):
        self.operations, self.seconds, self.asked = operations, seconds, 0

    def ask(self, *, row, times=0, count=False):
        self.asked += 1
        if self.operations[row] is None:
            return {"error": "ConfigError: no such name"}
        if count:
            return {"operations": self.operations[row], "elements": 1, "largest": 1}
        return {"seconds": times * self.seconds[row] * (1.02 if self.asked % 2 else 1)}


def test_rows_are_slower_differ_or_fail(capsys):
    operations = {"same": 5, "slow": 5, "more": 5, "gone": 5}
    old = Side(operations, dict.fromkeys(operations, 0.1))
    new = Side({**operations, "more": 6, "gone": None}, {"same": 0.1, "slow": 0.11, "more": 0.1})
    times, problems = turns.prepared([old, new], list(operations))
    assert times == {"same": 1, "slow": 1, "more": 1}
    assert problems == [
        "more: operations 5 before, 6 now",
        "gone: fails on the new side: ConfigError: no such name",
    ]
    taken = [turns.measured([old, new], times, turn) for turn in range(15)]
    assert all(list(one) == list(times) for one in taken)
    found = {name: [one[name] for one in taken] for name in times}
    assert list(turns.shown(found, times)) == ["slow"]
    assert [line.endswith("SLOWER") for line in capsys.readouterr().out.splitlines()[1:]] == [False, True, False]
    assert list(turns.shown({name: pairs[:5] for name, pairs in found.items()}, times)) == []
