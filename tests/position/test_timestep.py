"""Coordinates of the Universal Transformer: a sum of two sinusoids, counted from 1."""

import math

import pytest
import torch

from regard.core.errors import ConfigError
from regard.core.info import Heads
from regard.position import build_position

HEADS = Heads(count=2, key_dim=4)


@pytest.mark.parametrize("step", [1, 2, 7])
def test_both_coordinates_count_from_one_and_are_added(step):
    dim = 6
    scheme = build_position(f"timestep(step={step})", HEADS, dim)
    got = scheme.embed(torch.ones(1, 3, dim, dtype=torch.float64), torch.tensor([0, 1, 40]))[0]
    for row, slot in zip(got.tolist(), (0, 1, 40), strict=True):
        for c in range(dim // 2):
            w = 10000 ** (-2 * c / dim)
            assert abs(row[2 * c] - 1 - math.sin((slot + 1) * w) - math.sin(step * w)) < 1e-12
            assert abs(row[2 * c + 1] - 1 - math.cos((slot + 1) * w) - math.cos(step * w)) < 1e-12


def test_at_is_the_scheme_of_another_step_with_the_same_options():
    scheme = build_position("timestep(base=100.0, layout=halves)", HEADS, 5)
    x, where = torch.zeros(2, 4, 5, dtype=torch.float64), torch.arange(4)
    for t in (1, 3):
        wanted = build_position(f"timestep(step={t}, base=100.0, layout=halves)", HEADS, 5).embed(x, where)
        assert torch.equal(scheme.at(t).embed(x, where), wanted)
    assert not torch.equal(scheme.at(2).embed(x, where), scheme.embed(x, where))
    assert torch.equal(scheme.embed(x, where), scheme.at(1).embed(x, where)), "a scheme is not changed by `at`"


def test_rows_of_a_batch_may_stand_at_other_positions():
    scheme = build_position("timestep", HEADS, 6)
    where = torch.tensor([[0, 1], [5, 6]])
    x = torch.zeros(2, 2, 6, dtype=torch.float64)
    got = scheme.embed(x, where)
    for row in range(2):
        assert torch.equal(got[row], scheme.embed(x[:1], where[row])[0])


def test_steps_before_the_first_are_refused():
    with pytest.raises(ConfigError, match="counts steps from 1, got step=0"):
        build_position("timestep(step=0)", HEADS, 6)
    with pytest.raises(ConfigError, match="got step=-1"):
        build_position("timestep", HEADS, 6).at(-1)
