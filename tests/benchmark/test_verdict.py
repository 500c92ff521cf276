"""Intervals, differences and ties on samples whose answer is known."""

from collections.abc import Sequence

import numpy as np
import pytest

from regard.core.errors import NumericsError
from regard_lab.benchmark.verdict import Sample, difference, differences, estimates, seeds_needed, ties


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


def test_both_tests_have_to_tell_two_apart():
    """Over seeds with Student's t, as scipy has it, and over the same documents."""
    best, worse = coded(2.0, seeds=3), coded(2.03, seeds=3)
    found = difference(worse, best, larger_is_better=False)
    assert found.middle == pytest.approx(np.mean(found.seeds)) == pytest.approx(0.03, abs=0.01)
    gaps = worse.of_seeds - best.of_seeds
    half = 4.302652729911275 * gaps.std(ddof=1) / np.sqrt(3)  # scipy.stats.t.ppf(0.975, 2)
    assert found.over_seeds == pytest.approx((gaps.mean() - half, gaps.mean() + half))
    assert found.told
    assert found.tests == ("seeds", "units")
    moved = difference(coded(2.03, seeds=3, shift=(0.1, -0.1, 0)), best, larger_is_better=False)
    assert (moved.told, moved.tests) == (False, ("units",))
    turned = difference(best, worse, larger_is_better=False)
    assert turned.better
    assert not turned.told
    assert difference(coins(0.9), coins(0.5, draw=1), larger_is_better=True).better


def test_one_seed_and_what_was_coded_as_a_whole():
    """One seed leaves the documents; a text of one unit leaves the seeds; both leave nothing."""
    alone = difference(coded(2.5), coded(2.0), larger_is_better=False)
    assert (alone.over_seeds, alone.needed, alone.told) == (None, None, True)
    whole = Sample(np.array([[3.0]]), np.ones((1, 1)))
    found = difference(whole, coded(2.0, seeds=3), larger_is_better=False)
    assert found.over_units is None
    assert found.told
    assert not difference(whole, coded(2.0), larger_is_better=False).told


def test_seeds_that_are_said_to_settle_it_do():
    """The share of so many seeds whose paired t-test finds the difference: 80 %, and less with fewer."""
    from regard_lab.benchmark.student import quantile

    draw = np.random.default_rng(0)
    for effect, wanted in ((1.0, 10), (0.5, 34)):
        needed = seeds_needed(effect, 1.0)
        assert needed == wanted  # as G*Power has it for one sample
        found = []
        for seeds in (needed, needed // 2):
            trials = draw.normal(effect, 1.0, (4000, seeds))
            t = trials.mean(1) / (trials.std(1, ddof=1) / np.sqrt(seeds))
            found.append(np.mean(t > quantile(0.975, seeds - 1)))
        assert 0.79 < found[0] < 0.85
        assert found[1] < 0.65
    assert seeds_needed(0.0, 1.0) is seeds_needed(0.01, 1.0) is None
    assert seeds_needed(1.0, 0.0) == 2


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_what_is_no_number_is_not_the_best(names):
    """Whatever its place: a comparison with NaN is false, so that the first one would be kept."""
    lost = coded(2.0, seeds=3)
    lost.top[1, 4] = np.nan
    samples = {"a": lost, "b": coded(2.1, seeds=3)}
    for larger_is_better in (False, True):
        with pytest.raises(NumericsError, match=r"not every result is a finite number.*\n  a: nan$"):
            differences({name: samples[name] for name in names}, larger_is_better=larger_is_better)
