"""The comparison of recorded numbers finds what differs, and only that."""

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

SCRIPT = Path(__file__).parents[1] / "evidence" / "benchmarks" / "same_numbers.py"
spec = importlib.util.spec_from_file_location("same_numbers", SCRIPT)
same_numbers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(same_numbers)

ONE = torch.tensor([3.0, -0.5, float("nan"), float("inf"), 1e-20], dtype=torch.float64)


@pytest.fixture
def compared(tmp_path, capsys):
    def compare(before, after, allowed=()):
        for name, tensors in (("before", before), ("after", after)):
            save_file({key: x.clone() for key, x in tensors.items()}, tmp_path / f"{name}.safetensors")
        code = same_numbers.compare(tmp_path / "before.safetensors", tmp_path / "after.safetensors", allowed)
        return code, capsys.readouterr().out

    return compare


def changed(x, at, value):
    x = x.clone()
    x[at] = value
    return x


def test_equal_numbers(compared):
    code, shown = compared({"a": ONE}, {"a": ONE.clone()})
    assert code == 0
    assert "1 identical, 0 within rounding" in shown


def test_rounding_is_no_difference(compared):
    code, shown = compared({"a": ONE}, {"a": changed(ONE, 0, 3.0 + 1e-12)})
    assert code == 0
    assert "0 identical, 1 within rounding" in shown
    assert compared({"a": torch.full((3,), 1e-17)}, {"a": torch.zeros(3)})[0] == 0


@pytest.mark.parametrize(
    "other",
    [
        changed(ONE, 0, 3.0 + 1e-11),
        changed(ONE, 2, 0.0),
        changed(ONE, 2, float("inf")),
        changed(ONE, 3, float("-inf")),
        changed(ONE, 3, torch.finfo(torch.float64).max),
        changed(ONE, 1, float("nan")),
        ONE.float(),
        ONE[:4],
    ],
)
def test_another_number_is_a_difference(compared, other):
    code, shown = compared({"a": ONE, "b": ONE}, {"a": other, "b": ONE.clone()})
    assert code == 7
    assert [line.split()[1] for line in shown.splitlines()[:-1]] == ["a"]
    assert "1 different; 1 identical" in shown


def test_flags_and_counts_are_compared_exactly(compared):
    assert compared({"a": torch.tensor([5])}, {"a": torch.tensor([6])})[0] == 7
    assert compared({"a": torch.tensor([True])}, {"a": torch.tensor([False])})[0] == 7


def test_missing_and_new_names_are_differences(compared):
    before, after = {"kept": ONE, "gone/x": ONE}, {"kept": ONE, "added": ONE}
    code, shown = compared(before, after)
    assert code == 7
    assert shown.splitlines()[:2] == ["missing  gone/x", "new      added"]
    code, shown = compared(before, after, ["gone*", "added"])
    assert code == 0
    assert "2 set aside" in shown


def test_a_mechanism_is_recorded_with_every_option_set():
    numbers = same_numbers.Numbers()
    same_numbers.mechanisms(numbers, "sigmoid")
    cls, _ = same_numbers.catalog.resolve("sigmoid")
    samples = {same_numbers.label("sigmoid", one) for one in cls.samples}
    others = {key.split("/")[1] for key in numbers} - samples
    assert samples < {key.split("/")[1] for key in numbers}
    assert len(others) == 1
    assert "impl='reference'" in others.pop()
    short = "attention/sigmoid/causal/13"
    assert {f"{short}/{what}" for what in ("plain/values", "plain/gradient q", "masked/values", "curve/values")} <= {
        *numbers
    }
    assert {f"{short}/state/2 pieces/{what}" for what in ("values 0", "nbytes 1", "state 1 k")} <= {*numbers}
    assert numbers.failures == 0


def test_a_refusal_is_recorded_and_an_error_is_counted(capsys):
    numbers = same_numbers.Numbers()
    with numbers.attempt("a"):
        raise same_numbers.regard.ConfigError("refused")
    with numbers.attempt("b"):
        raise ValueError("broken")
    assert list(numbers) == ["a/refused ConfigError"]
    assert numbers.failures == 1
    assert "FAILED b" in capsys.readouterr().err
