"""The guarantee of a calibrated threshold, by simulation, and that a naive choice has none."""

import numpy as np
import pytest

from regard.core.errors import ConfigError, DataError, InputError, ShapeError
from regard_lab.calibration import bonferroni, calibrate, fixed_sequence, items_needed

GRID = np.linspace(1, 0, 26)
RISK, CONFIDENCE, TRIALS = 0.1, 0.9, 200
EXPECTED = 0.12 * (1 - GRID)
"""risk at each threshold; that of the smallest ones lies a little above the limit"""


def drawn(seed: int, items: int, *, binary: bool) -> np.ndarray:
    """Losses with the expected risks, alike at all thresholds, as those of one text are."""
    rng = np.random.default_rng(seed)
    hit = rng.random((items, 1)) < np.minimum(1, EXPECTED * (1 if binary else 2))
    return hit * (1.0 if binary else rng.random((items, 1)))


def plugged_in(losses: np.ndarray) -> float:
    """The smallest threshold whose mean loss is within the limit."""
    return float(GRID[np.flatnonzero(losses.mean(0) <= RISK)[-1]])


@pytest.mark.parametrize(
    ("test", "binary"),
    [("hoeffding_bentkus", False), ("binomial", True)],
)
def test_the_guarantee_holds_where_a_naive_choice_breaks_it(test, binary):
    violations, naive, used = 0, 0, 0
    for seed in range(TRIALS):
        losses = drawn(seed, 250, binary=binary)
        found = calibrate(losses, GRID.tolist(), risk=RISK, confidence=CONFIDENCE, test=test)
        chosen = 1.0 if found.threshold is None else found.threshold
        violations += 0.12 * (1 - chosen) > RISK
        used += chosen < 1
        naive += 0.12 * (1 - plugged_in(losses)) > RISK
    assert violations <= (1 - CONFIDENCE) * TRIALS
    assert naive > 0.4 * TRIALS
    assert used == TRIALS, "nothing but the full model is no evidence"


def test_the_search_by_hand():
    assert fixed_sequence([0.2, 0.0], 0.1) == ()
    assert fixed_sequence([0.1, 0.1], 0.1) == (0, 1)
    assert fixed_sequence([0.0, float("nan"), 0.0], 0.1) == (0,)
    assert fixed_sequence([], 0.1) == bonferroni([], 0.1) == ()
    assert bonferroni([0.06, 0.04, 0.2], 0.15) == (1,)
    assert bonferroni([0.025, 0.9], 0.05) == (0,)


def test_what_is_found_and_said():
    losses = np.zeros((100, 4))
    losses[:2, 1], losses[:5, 2] = 1, 1  # p: 0.9^100; 0.0019; 0.0576; 0.9^100
    found = calibrate(losses, [4, 3, 2, 1], risk=0.1, test="binomial")
    assert (found.threshold, found.certified) == (3.0, (4.0, 3.0))
    assert found.risks == (0.0, 0.02, 0.05, 0.0)
    assert found.p_values[0] == found.p_values[3] == pytest.approx(0.9**100, rel=1e-12)
    assert found.guarantee == (
        "With a probability of at least 0.95 over the draw of the 100 calibration items, the expected loss at "
        "threshold 3 is at most 0.1 for items drawn like these (exact binomial p-values, tested in a fixed sequence)."
    )
    none = calibrate(np.ones((100, 2), dtype=bool), [2, 1], risk=0.1)
    assert none.threshold is None
    assert none.certified == ()
    assert none.guarantee == (
        "None of 2 thresholds is certified to keep the expected loss at 0.1 or less with a confidence of 0.95 by 100 "
        "items (Hoeffding-Bentkus p-values, tested in a fixed sequence), so the full model is to be used."
    )


def test_too_few_items_are_refused_and_just_enough_are_not():
    needed = items_needed(risk=0.1, confidence=0.9)
    found = calibrate(np.zeros((needed, 3)), [3, 2, 1], risk=0.1, confidence=0.9)
    assert found.threshold == 1
    with pytest.raises(DataError, match=f"{needed - 1} calibration items certify no .* need {needed} items or more"):
        calibrate(np.zeros((needed - 1, 3)), [3, 2, 1], risk=0.1, confidence=0.9)


def test_what_makes_no_sense_is_named():
    losses = np.zeros((100, 2))
    for given, error, message in (
        ({"risk": 1.0}, ConfigError, "risk must lie between 0 and 1"),
        ({"confidence": 0.0}, ConfigError, "confidence must lie between 0 and 1"),
        ({"test": "exact"}, ConfigError, "test must be one of hoeffding_bentkus, binomial"),
        ({"thresholds": [1, 2]}, ConfigError, "thresholds must fall"),
        ({"thresholds": [1, 1]}, ConfigError, "thresholds must fall"),
        ({"thresholds": [float("nan")], "losses": losses[:, :1]}, ConfigError, "thresholds must fall"),
        ({"thresholds": [], "losses": losses[:, :0]}, ConfigError, "thresholds must fall"),
        ({"thresholds": [3, 2, 1]}, ShapeError, "losses must be .items, thresholds=3., got .100, 2."),
        ({"losses": losses + 1.1}, InputError, "losses must lie in .0, 1."),
        ({"losses": losses - 0.1}, InputError, "losses must lie in .0, 1."),
        ({"losses": losses + np.nan}, InputError, "losses must lie in .0, 1."),
        ({"losses": losses + 0.5, "test": "binomial"}, InputError, "losses of 0 and 1"),
        ({"losses": losses[:0]}, DataError, "0 calibration items certify no threshold"),
    ):
        with pytest.raises(error, match=message):
            calibrate(**{"losses": losses, "thresholds": [2, 1], "risk": 0.1, **given})
