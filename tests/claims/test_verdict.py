"""The rule by which every claim is judged."""

import math

import numpy as np
import pytest

from evidence.claims import Control, Finding
from evidence.claims._plateau import change
from evidence.claims._verdict import conclude, judge
from regard_lab.benchmark import student

CONTROL = Control(value="control", title="control", expected=1.0, tolerance=0.1)
GAIN = Finding(value="gain", title="gain", at_least=0.1)


def seeds(gains, control=1.0):
    return [{"gain": gain, "control": control} for gain in gains]


@pytest.mark.parametrize(
    ("probability", "freedom", "known"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 3, 3.1824),
        (0.975, 4, 2.7764),
        (0.975, 9, 2.2622),
        (0.975, 30, 2.0423),
        (0.8, 1, 1.3764),
        (0.8, 2, 1.0607),
        (0.8, 5, 0.9195),
        (0.995, 4, 4.6041),
    ],
)
def test_quantiles_are_those_of_the_printed_tables(probability, freedom, known):
    assert student.quantile(probability, freedom) == pytest.approx(known, abs=5e-5)


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([0.30, 0.31, 0.32], "holds"),
        ([0.00, 0.01, 0.02], "does not hold"),
        ([0.10, 0.30, 0.20], "inconclusive"),
        ([0.30, 0.30, 0.30], "holds"),
        ([0.30, math.nan, 0.30], "inconclusive"),
        ([0.30, math.inf, 0.30], "inconclusive"),
        ([0.30, 0.31], "inconclusive"),
        ([0.30], "inconclusive"),
    ],
)
def test_a_finding_needs_its_whole_interval_on_one_side(gains, verdict):
    assert conclude([CONTROL], [GAIN], seeds(gains)).verdict == verdict


@pytest.mark.parametrize("control", [0.89, 1.11, math.nan, math.inf])
@pytest.mark.parametrize("gains", [[0.3, 0.31, 0.32], [0.0, 0.01, 0.02]])
def test_a_missed_control_concludes_nothing(gains, control):
    observed = seeds(gains)
    observed[1]["control"] = control
    found = conclude([CONTROL], [GAIN], observed)
    assert found.verdict == "inconclusive"
    assert "control missed" in found.reason
    assert not found.controls[0].reached


def test_both_bounds_are_an_equivalence():
    same = Finding(value="gain", title="same", at_least=-0.1, at_most=0.1)
    assert conclude([], [same], seeds([0.0, 0.01, -0.01])).verdict == "holds"
    assert conclude([], [same], seeds([0.2, -0.2, 0.0])).verdict == "inconclusive"
    assert conclude([], [same], seeds([0.5, 0.51, 0.52])).verdict == "does not hold"


def test_one_finding_that_fails_fails_the_claim():
    other = Finding(value="gain", title="too much", at_least=0.4)
    found = conclude([CONTROL], [GAIN, other], seeds([0.30, 0.31, 0.32]))
    assert found.verdict == "does not hold"
    assert found.reason == "outside what the claim says: too much"
    assert [one.verdict for one in found.findings] == ["holds", "does not hold"]


def test_findings_beside_the_claim_get_a_verdict_and_decide_nothing():
    beside = Finding(value="gain", title="beside", at_least=0.4, states=False)
    found = conclude([CONTROL], [GAIN, beside], seeds([0.30, 0.31, 0.32]))
    assert found.verdict == "holds"
    assert [(one.verdict, one.states) for one in found.findings] == [("holds", True), ("does not hold", False)]
    with pytest.raises(AssertionError, match="no finding states the claim"):
        conclude([CONTROL], [beside], seeds([0.30, 0.31, 0.32]))


def test_a_claim_may_need_more_seeds():
    observed = seeds([0.30, 0.31, 0.32])
    found = conclude([CONTROL], [GAIN], observed, least_seeds=5)
    assert (found.verdict, found.reason) == ("inconclusive", "3 of at least 5 seeds")
    assert conclude([CONTROL], [GAIN], seeds([0.30, 0.31, 0.32, 0.30, 0.31]), least_seeds=5).verdict == "holds"


def test_what_is_inconclusive_says_what_could_have_been_seen():
    found = conclude([CONTROL], [GAIN], seeds([0.10, 0.30, 0.20]))
    assert found.reason == "cannot be told from the bound: gain (could have been seen: 0.31)"
    assert found.findings[0].smallest_effect == pytest.approx((4.3027 + 1.0607) * 0.1 / 3**0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("losses", "known"),
    [
        ([1.0] * 100, 0.0),
        ([2.0] * 90 + [1.9] * 10, 0.05),
        ([1.0] * 90 + [1.5] * 10, 0.5),
        ([0.01] * 90 + [0.0] * 10, 0.2),  # of 0.05 nats
        ([5.0] * 20 + [1.0] * 19, math.inf),  # fewer than two tenths that say anything
    ],
)
def test_the_end_of_a_training(losses, known):
    losses = losses[-19:] if known == math.inf else losses
    assert change(losses) == pytest.approx(known)


def test_no_finding_is_finer_than_its_resolution():
    coarse = Finding(value="gain", title="gain", at_least=0.1, resolution=0.05)
    found = judge(coarse, [0.12, 0.12, 0.12])
    assert (found.verdict, found.smallest_effect) == ("inconclusive", 0.05)
    assert judge(GAIN, [0.12, 0.12, 0.12]).verdict == "holds"


def test_the_interval_covers_and_the_smallest_effect_is_seen_four_times_in_five():
    draw, trials, count = np.random.default_rng(0), 4000, 3
    free = Finding(value="gain", title="gain", at_least=-math.inf)
    covered = sum(
        one.low <= 0 <= one.high for one in (judge(free, list(draw.normal(size=count))) for _ in range(trials))
    )
    assert covered / trials == pytest.approx(0.95, abs=0.015)
    effect = (student.quantile(0.975, 2) + student.quantile(0.8, 2)) / math.sqrt(count)
    finding = Finding(value="gain", title="gain", at_most=0.0)
    seen = sum(judge(finding, list(effect + draw.normal(size=count))).verdict == "does not hold" for _ in range(trials))
    assert seen / trials == pytest.approx(0.8, abs=0.06)
    missed = sum(judge(finding, list(draw.normal(size=count))).verdict == "does not hold" for _ in range(trials))
    assert missed / trials == pytest.approx(0.025, abs=0.01)
