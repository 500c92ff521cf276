"""Intervals, ties and recommendations on samples whose answer is known."""

from collections.abc import Sequence

import numpy as np
import pytest

from regard.benchmark.measures import CLASSIFICATION, RECALL
from regard.benchmark.verdict import LEARNED_RECALL, Recommendation, Rival, Sample, Standing, estimates, recommend, ties


def coins(share: float, *, seeds: int = 1, units: int = 60, questions: int = 40, draw: int = 0) -> Sample:
    """Right answers of something that is right this often, on sequences of so many questions."""
    right = np.random.default_rng(draw).binomial(questions, share, (seeds, units))
    return Sample(right.astype(float), np.full((seeds, units), float(questions)))


def coded(bits: float, *, seeds: int = 1, shift: Sequence[float] | None = None, noise: float = 0.02) -> Sample:
    """Bits and bytes of the same 40 documents, some much harder than others; `shift` moves each seed."""
    draw = np.random.default_rng(7)
    sizes = draw.integers(200, 4000, 40).astype(float)
    hard = draw.normal(0, 0.4, 40)
    own = np.random.default_rng(int(bits * 1e6)).normal(0, noise, (seeds, 40))
    moved = np.array(shift or [0.0] * seeds)[:, None]
    return Sample((bits + hard + own + moved) * sizes, np.tile(sizes, (seeds, 1)))


def test_the_value_is_a_ratio_of_sums_and_not_a_mean_of_ratios():
    sample = Sample(np.array([[1.0, 30.0]]), np.array([[1.0, 10.0]]))
    assert sample.value == 31 / 11
    (found,) = estimates({"it": sample}).values()
    assert found.middle == 31 / 11
    assert found.low == 1.0
    assert found.high == 3.0


def test_intervals_hold_the_truth_as_often_as_they_say():
    """600 questions answered right 70 % of the time: about 57 of 60 intervals hold 0.7."""
    samples = {str(draw): coins(0.7, units=30, questions=20, draw=draw) for draw in range(60)}
    found = list(estimates(samples).values())
    held = sum(estimate.low <= 0.7 <= estimate.high for estimate in found)
    assert 52 <= held <= 59
    widths = [estimate.high - estimate.low for estimate in found]
    assert np.mean(widths) == pytest.approx(2 * 1.96 * np.sqrt(0.7 * 0.3 / 600), rel=0.15)


def test_the_same_samples_give_the_same_intervals():
    samples = {"a": coded(2.0), "b": coded(2.1)}
    assert estimates(samples) == estimates(samples)


def test_a_real_difference_is_a_difference():
    best, tied = ties({"a": coins(0.95), "b": coins(0.6, draw=1), "c": coins(0.94, draw=2)}, larger_is_better=True)
    assert best in ("a", "c")
    assert sorted(tied) == ["a", "c"]


def test_noise_is_a_tie():
    samples = {name: coins(0.5, draw=draw) for draw, name in enumerate("abcd")}
    assert sorted(ties(samples, larger_is_better=True)[1]) == list("abcd")


def test_documents_are_paired():
    """Documents differ by 0.4 bits and these two models by 0.03: only a paired bootstrap sees it."""
    samples = {"a": coded(2.0), "b": coded(2.03)}
    found = estimates(samples)
    assert found["a"].high > found["b"].low + 0.1
    assert ties(samples, larger_is_better=False) == ("a", ["a"])


def test_lower_and_higher():
    samples = {"a": coded(2.0), "b": coded(2.5)}
    assert ties(samples, larger_is_better=False) == ("a", ["a"])
    assert ties(samples, larger_is_better=True) == ("b", ["b"])


def test_seeds_that_differ_more_than_the_mechanisms_make_a_tie():
    apart = {"a": coded(2.0, seeds=3, shift=(-0.3, 0.0, 0.3)), "b": coded(2.1, seeds=3, shift=(0.3, -0.3, 0.0))}
    assert ties(apart, larger_is_better=False) == ("a", ["a", "b"])
    close = {"a": coded(2.0, seeds=3, shift=(-0.01, 0.0, 0.01)), "b": coded(2.1, seeds=3, shift=(0.01, -0.01, 0.0))}
    assert ties(close, larger_is_better=False) == ("a", ["a"])


def test_equal_and_alone():
    assert ties({"a": coins(0.5), "b": coins(0.5)}, larger_is_better=True)[1] == ["a", "b"]
    assert ties({"a": coins(0.5)}, larger_is_better=True) == ("a", ["a"])
    perfect = Sample(np.ones((1, 9)), np.ones((1, 9)))
    assert ties({"a": perfect, "b": perfect}, larger_is_better=True)[1] == ["a", "b"]


def standing(spec: str, bits: float, recall: float, speed: float, cost: float = 1.0) -> Standing:
    return Standing(spec, bits, recall, speed, None, {256: 0.1, 8192: cost})


SOFTMAX, LINEAR = standing("softmax", 2.0, 0.99, 100.0), standing("linear", 2.01, 0.98, 300.0)
WINDOW = standing("local", 2.2, 0.3, 200.0, cost=0.2)


def test_the_fastest_of_those_that_tie_on_both():
    found = recommend([SOFTMAX, LINEAR, WINDOW], ["softmax", "linear"], ["softmax", "linear"], length=256)
    assert found.spec == "linear"
    assert "2.010 bits per byte ties with the best (softmax cannot be told from it)" in found.reason
    assert "recall of 98% is not below the best" in found.reason
    assert "of those it trains fastest at 256 tokens (300 tokens/s)" in found.reason


def test_alone_at_the_top():
    found = recommend([SOFTMAX, WINDOW], ["softmax"], ["softmax"], length=256)
    assert found.spec == "softmax"
    assert found.reason.startswith("2.000 bits per byte is the lowest; its recall of 99% is not below the best")
    assert "trains fastest" not in found.reason
    assert found.reason.endswith(
        "for sequences of 8,192 tokens look at local: its attention is 5.0 times faster there, at 2.200 bits per byte "
        "and 30% recall."
    )


def test_recall_narrows_the_choice():
    """A faster one ties on quality and not on recall."""
    fast = standing("fast", 2.0, 0.5, 900.0)
    assert recommend([SOFTMAX, fast], ["softmax", "fast"], ["softmax"], length=256).spec == "softmax"


def test_quality_decides_where_none_has_both_and_the_loss_is_said():
    found = recommend([SOFTMAX, WINDOW], ["local"], ["softmax"], length=256)
    assert found.spec == "local"
    assert "its recall of 30% is below the 99% of softmax" in found.reason
    assert "not below" not in found.reason


def test_nothing_cheaper_nothing_said():
    found = recommend([SOFTMAX, standing("b", 2.5, 0.1, 1.0, cost=0.7)], ["softmax"], ["softmax"], length=256)
    assert "look at" not in found.reason
    bare = Standing("softmax", 2.0, 0.99, 1.0, None, {})
    assert recommend([bare], ["softmax"], ["softmax"], length=256).reason.count(";") == 1


def test_a_comparison_that_learned_nothing_says_so_first():
    poor = [standing("a", 7.3, 0.04, 1.0), standing("b", 7.2, 0.05, 2.0)]
    found = recommend(poor, ["a", "b"], ["a", "b"], length=64, floor=("3-gram", 3.6), chance=0.03)
    assert found.reason.startswith("No specification beats the 3-gram (3.600 bits per byte)")
    assert "recall says little yet: the best, b, reached 5%, guessing gives 3%" in found.reason
    assert f"at least {LEARNED_RECALL:.0%}" in found.reason
    assert "not below the best" not in found.reason


def test_a_comparison_that_learned_says_nothing_of_the_floor():
    found = recommend([SOFTMAX], ["softmax"], ["softmax"], length=64, floor=("3-gram", 2.1), chance=0.03)
    assert "3-gram" not in found.reason
    assert "guessing" not in found.reason


def test_accuracy_is_better_when_higher_and_rivals_are_named():
    standings = [Standing("a", 0.8, None, 100.0, None, {}), Standing("b", 0.9, None, 50.0, None, {})]
    found = recommend(standings, ["b"], None, length=49, measure=CLASSIFICATION, floor=("majority", 0.1))
    assert found == Recommendation("b", "90.0% accuracy is the highest.")
    rivals = [Rival("mlp", 0.95, better=True), Rival("lstm", 0.9, better=False)]
    found = recommend(standings, ["a", "b"], None, length=49, measure=CLASSIFICATION, rivals=rivals)
    assert found == Recommendation(
        "a",
        "80.0% accuracy ties with the best (b cannot be told from it); without attention mlp reached 95.0% accuracy in "
        "the same time, which is better; without attention lstm reached 90.0% accuracy in the same time, which cannot "
        "be told from the best; of those it trains fastest at 49 tokens (100 tokens/s).",
    )
    found = recommend(standings, ["b"], None, length=49, measure=CLASSIFICATION, rivals=rivals[:1])
    assert found.reason.startswith("90.0% accuracy is the highest of the specifications; without attention mlp")
    found = recommend(standings, ["b"], None, length=49, measure=CLASSIFICATION, floor=("majority", 0.9))
    assert found.reason.startswith("No specification beats the majority (90.0% accuracy), so they were trained too li")


def test_recall_alone_is_the_quality():
    learned = [Standing("a", 0.95, None, 100.0, None, {}), Standing("b", 0.5, None, 50.0, None, {})]
    found = recommend(learned, ["a"], None, length=64, measure=RECALL, chance=0.03)
    assert found == Recommendation("a", "95.0% recall is the highest.")
    found = recommend(learned[1:], ["b"], None, length=64, measure=RECALL, chance=0.03)
    assert "recall says little yet: the best, b, reached 50%, guessing gives 3%" in found.reason
