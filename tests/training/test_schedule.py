import itertools
import math

import pytest

from regard.core.errors import ConfigError
from regard_lab.training.config import TrainingConfig
from regard_lab.training.schedule import learning_rate


def test_warm_up_is_linear_and_ends_at_the_peak():
    rates = [learning_rate(step, peak=0.8, steps=100, warmup=3) for step in range(4)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8], rel=1e-12)


def test_cosine_golden_values():
    """By hand: floor 0.1, warm-up 2, 6 steps; progress 0, 1/4, 1/2, 3/4 at steps 2 to 5."""
    rates = [learning_rate(step, peak=1.0, steps=6, warmup=2, minimum_ratio=0.1) for step in (2, 3, 4, 5)]
    half = math.sqrt(0.5)
    assert rates == pytest.approx([1.0, 0.1 + 0.45 * (1 + half), 0.55, 0.1 + 0.45 * (1 - half)], rel=1e-12)


def test_other_schedules():
    steps = range(2, 6)
    linear = [learning_rate(s, peak=2.0, steps=6, warmup=2, schedule="linear", minimum_ratio=0.5) for s in steps]
    assert linear == pytest.approx([2.0, 1.75, 1.5, 1.25], rel=1e-12)
    assert {learning_rate(s, peak=2.0, steps=6, warmup=2, schedule="constant") for s in steps} == {2.0}
    root = [learning_rate(s, peak=2.0, steps=99, warmup=1, schedule="inverse_sqrt") for s in (1, 7, 31)]
    assert root == pytest.approx([2.0, 1.0, 0.5], rel=1e-12)
    assert learning_rate(999, peak=2.0, steps=9, warmup=1, schedule="inverse_sqrt", minimum_ratio=0.25) == 0.5


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant", "inverse_sqrt"])
def test_never_above_the_peak_nor_below_the_floor_and_never_rising_after_the_warm_up(schedule):
    rates = [
        learning_rate(s, peak=3.0, steps=50, warmup=10, schedule=schedule, minimum_ratio=0.2) for s in range(10, 60)
    ]
    assert rates[0] == 3.0
    assert min(rates) >= 0.6 - 1e-12
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates))


def test_a_run_shorter_than_its_warm_up_has_a_rate():
    assert learning_rate(0, peak=1.0, steps=1, warmup=9) == pytest.approx(0.1)


def test_the_published_warm_up():
    """By hand, D = 64, w = 4: factor / 8 times s / 8 up to s = 4, then 1 / sqrt(s)."""
    rates = [learning_rate(s - 1, peak=2.0, steps=99, warmup=4, schedule="noam", dim=64) for s in (1, 2, 4, 16, 64)]
    assert rates == pytest.approx([0.25 / 8, 0.5 / 8, 0.25 / 2, 0.25 / 4, 0.25 / 8], rel=1e-12)


@pytest.mark.parametrize(("dim", "warmup"), [(None, 10), (64, 0)])
def test_the_published_warm_up_needs_a_width_and_a_warm_up(dim, warmup):
    with pytest.raises(ConfigError, match=f"dim={dim} and warmup={warmup}"):
        learning_rate(0, peak=1.0, steps=9, warmup=warmup, schedule="noam", dim=dim)


def test_the_published_factor_is_not_a_rate():
    assert TrainingConfig(schedule="noam", learning_rate=1.0).warmup == 100
    with pytest.raises(ConfigError, match="learning_rate is a factor under schedule noam"):
        TrainingConfig(schedule="noam")
    with pytest.raises(ConfigError, match="warmup must be at least 1 under schedule noam"):
        TrainingConfig(schedule="noam", learning_rate=1.0, warmup=0)
