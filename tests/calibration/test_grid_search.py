"""Thresholds of every block: what is taken, against all combinations, and what is refused."""

import itertools
import math

import numpy as np
import pytest
import torch

from regard.core.errors import ConfigError, InputError, ShapeError
from regard.models import LanguageModel, ModelConfig
from regard.models.depth import build_depth
from regard_lab.calibration import grid_search

GRID = [0.3, 0.5, 0.8]


def drawn(seed: int, tokens: int = 40, blocks: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Confidences that mean something at the second block alone, and losses that fall with depth."""
    rng = np.random.default_rng(seed)
    wrong = rng.random((tokens, blocks)) < np.linspace(0.7, 0.1, blocks)
    sure = rng.random((tokens, blocks - 1))
    sure[:, 1] = np.where(wrong[:, 1], 0.45, 0.7) * rng.random(tokens) ** 0.1
    return sure, wrong.astype(np.float64)


def cost(sure: np.ndarray, losses: np.ndarray, thresholds: tuple[float | None, ...], price: float) -> float:
    """Token by token."""
    total = 0.0
    for one, loss in zip(sure, losses, strict=True):
        leaves = [tau is not None and c >= tau for c, tau in zip(one, thresholds, strict=True)]
        used = leaves.index(True) + 1 if True in leaves else len(loss)
        total += loss[used - 1] + price * used
    return total / len(sure)


@pytest.mark.parametrize("price", [0.0, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_the_search_against_all_combinations(seed: int, price: float) -> None:
    sure, losses = drawn(seed)
    found = grid_search(sure, losses, GRID, price=price)
    levels = [*GRID, None]
    got = cost(sure, losses, found.thresholds, price)
    assert got == pytest.approx(found.loss + price * found.blocks, rel=1e-12)
    assert all(one in levels for one in found.thresholds)
    shared = min(cost(sure, losses, (level,) * 3, price) for level in levels)
    alone = min(
        cost(sure, losses, (*found.thresholds[:at], level, *found.thresholds[at + 1 :]), price)
        for at in range(3)
        for level in levels
    )
    assert got <= shared + 1e-12
    assert got <= alone + 1e-12, "a change of one block is better"
    best = min(cost(sure, losses, each, price) for each in itertools.product(levels, repeat=3))
    assert best - 1e-12 <= got <= best + 0.02, "stuck far from the best of all"


def test_blocks_differ_where_their_confidences_do() -> None:
    sure, losses = drawn(0, tokens=4000)
    found = grid_search(sure, losses, GRID, price=0.05)
    assert len(set(found.thresholds)) > 1
    assert cost(sure, losses, found.thresholds, 0.05) < min(
        cost(sure, losses, (level,) * 3, 0.05) - 0.01 for level in [*GRID, None]
    )


@pytest.mark.parametrize(
    ("losses", "sure", "thresholds"),
    [
        ([[1.0, 3.0, 1.0], [5.0, 0.0, 1.0]], [[0.9, 0.9], [0.1, 0.9]], (0.5, 0.5)),  # no change of None alone is better
        ([[1.0, 2.0, 0.0]], [[0.9, 0.9]], (None, None)),  # and here none of 0.5
        ([[2.0, 0.5, 3.0], [9.0, 3.2, 2.0]], [[0.9, 0.9], [0.1, 0.9]], (None, 0.5)),  # from above: (0.5, None)
    ],
)
def test_it_begins_with_what_is_best_for_all_and_goes_from_the_deepest_up(losses, sure, thresholds) -> None:
    assert grid_search(np.array(sure), np.array(losses), [0.5], price=0.0).thresholds == thresholds


def test_of_equal_thresholds_the_highest_is_taken() -> None:
    assert grid_search(np.array([[0.9]]), np.array([[0.0, 1.0]]), [0.2, 0.5], price=0.0).thresholds == (0.5,)


def test_what_does_not_pay_is_not_taken() -> None:
    sure, losses = drawn(1)
    assert grid_search(sure, np.zeros_like(losses), GRID, price=0.0).loss == 0
    assert grid_search(sure, losses, [0.0], price=9.0).thresholds == (0.0, 0.0, 0.0)
    never = grid_search(sure, losses * 0 + np.array([1.0, 1.0, 1.0, 0.0]), GRID, price=0.01)
    assert never.thresholds == (None,) * 3
    assert never.blocks == 4
    nowhere = grid_search(np.full_like(sure, np.nan), losses, GRID, price=9.0)
    assert nowhere.blocks == 4
    assert grid_search(sure[:, :0], losses[:, :1], GRID, price=0.1).thresholds == ()


def test_a_model_takes_what_was_found() -> None:
    """Blocks that no token leaves behind included."""
    found = grid_search(np.full((2, 2), 0.5), np.array([[9.0, 0.0, 0.0]] * 2), [0.5], price=0.1)
    assert found.thresholds == (None, 0.5)
    config = ModelConfig(dim=8, heads=2, layers=3, vocab_size=9)
    depth = build_depth(f"early_exit(thresholds={found.thresholds!r})", config)
    assert depth.options["thresholds"] == found.thresholds
    model = LanguageModel(config).eval()
    model.depth = depth.eval()
    assert 1 not in model(torch.arange(9)[None]).steps
    model.depth = build_depth("early_exit(thresholds=(None, -1.0))", config).eval()
    assert (model(torch.arange(9)[None]).steps == 2).all()


def test_what_makes_no_sense_is_named() -> None:
    sure, losses = drawn(2)
    with pytest.raises(ShapeError, match=r"confidences must be \(tokens, blocks - 1\)"):
        grid_search(sure[:, 1:], losses, GRID, price=0.1)
    for grid in ([], [0.5, math.nan]):
        with pytest.raises(ConfigError, match="grid must have one threshold or more"):
            grid_search(sure, losses, grid, price=0.1)
    for price in (-0.1, math.inf, math.nan):
        with pytest.raises(ConfigError, match="price must be finite"):
            grid_search(sure, losses, GRID, price=price)
    with pytest.raises(InputError, match="losses must be finite"):
        grid_search(sure, np.where(losses == 1, np.nan, losses), GRID, price=0.1)
    with pytest.raises(InputError, match="losses must be finite"):
        grid_search(sure[:0], losses[:0], GRID, price=0.1)
