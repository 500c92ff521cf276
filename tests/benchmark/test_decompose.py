"""Bias and variance from redraws, against simulations whose bias and variance are known."""

import math

import pytest
import torch

from regard_lab.benchmark.decompose import decompose

NUMBERS, REDRAWS, TIMES = 40, 8, 1000


def simulated(bias: float, noise: float, seed: int, heavy: bool = False) -> list:
    """Parts of many experiments: errors are a fixed vector of squared length `bias` plus noise."""
    draw = torch.Generator().manual_seed(seed)
    fixed = torch.randn(NUMBERS, generator=draw, dtype=torch.float64)
    fixed *= math.sqrt(bias) / fixed.norm()
    drawn = torch.randn(TIMES, REDRAWS, NUMBERS, generator=draw, dtype=torch.float64)
    if heavy:  # one redraw in ten is three times as far off; the variance stays 1
        far = (torch.rand(TIMES, REDRAWS, 1, generator=draw) < 0.1).double()
        drawn = drawn * (1 + 2 * far) / math.sqrt(1.8)
    return [decompose(fixed + noise * one, 2.0) for one in drawn]


def mean_of(parts: list, name: str) -> tuple[float, float]:
    values = torch.tensor([getattr(one, name) for one in parts], dtype=torch.float64)
    return values.mean().item(), values.std().item()


@pytest.mark.parametrize(("bias", "noise", "heavy"), [(0.0, 1.0, False), (5.0, 0.5, False), (3.0, 0.7, True)])
def test_the_parts_are_unbiased_and_the_standard_errors_fit(bias, noise, heavy):
    parts = simulated(bias, noise, seed=1, heavy=heavy)
    wanted = {"bias": bias / 2, "variance": noise**2 * NUMBERS / 2, "error": (bias + noise**2 * NUMBERS) / 2}
    for name, value in wanted.items():
        mean, spread = mean_of(parts, name)
        assert abs(mean - value) < 4.5 * spread / math.sqrt(TIMES), (name, mean, value)
        if name != "bias" or bias:
            stated = math.sqrt(sum(getattr(one, f"{name}_se") ** 2 for one in parts) / TIMES)
            assert 0.85 * spread < stated < 1.35 * spread, (name, stated, spread)
    for one in parts[:20]:
        assert one.error == pytest.approx(one.bias + one.variance, rel=1e-12)


@pytest.mark.parametrize("heavy", [False, True])
def test_no_bias_is_rarely_called_one(heavy):
    parts = simulated(0.0, 1.0, seed=2, heavy=heavy)
    assert sum(one.biased for one in parts) < 0.05 * TIMES


def test_the_smallest_bias_is_seen_four_times_in_five():
    smallest, _ = mean_of(simulated(0.0, 1.0, seed=3), "smallest_bias")
    seen = sum(one.biased for one in simulated(2.0 * smallest, 1.0, seed=4)) / TIMES
    assert 0.65 < seen < 0.95
    assert sum(one.biased for one in simulated(0.2 * smallest, 1.0, seed=5)) < 0.3 * TIMES


def test_the_parts_of_three_redraws_written_out():
    errors = torch.tensor([[1.0, 0.0], [2.0, 1.0], [0.0, -4.0]], dtype=torch.float64)
    found = decompose(errors, 4.0)
    mean = errors.mean(0)
    spread = sum((one - mean).square().sum().item() for one in errors) / 2
    assert found.error == pytest.approx((1 + 5 + 16) / 3 / 4)
    assert found.variance == pytest.approx(spread / 4)
    assert found.bias == pytest.approx((mean.square().sum().item() - spread / 3) / 4)
    assert found.bias == pytest.approx((1 * 2 + 0 + -4) / 3 / 4)
    assert not found.biased


def test_a_single_redraw_is_all_bias():
    found = decompose(torch.tensor([[3.0, -4.0]]), 100.0)
    assert (found.error, found.bias, found.variance, found.biased) == (0.25, 0.25, 0.0, True)
    assert not decompose(torch.zeros(1, 3), 1.0).biased


def test_two_redraws_are_our_own_mistake():
    with pytest.raises(AssertionError):
        decompose(torch.ones(2, 3), 1.0)
