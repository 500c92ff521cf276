"""Patterns in parts: which parts, in which order, how many scores they compute."""

import pytest
import torch

from regard.engines.tiles.parts import arranged, split
from regard.engines.tiles.plan import Positions, find_plan
from regard.patterns import Columns, Pattern, Residues, parse
from regard.testing.checks.pattern import times_held
from regard.testing.counting import count

ORDERS = {
    "causal & window(64)": [None],
    "causal & strided(64)": [Residues(64)],
    "causal & (window(64) | strided(64))": [None, Residues(64)],
    "(window(64) | strided(64)) & causal": [None, Residues(64)],
    "causal & (strided(30) | strided(64) | window(9))": [None, Residues(30), Residues(64)],
    "causal & (block(64) | summary(64, 8))": [None, Columns(64, 56, 8)],
    "causal & (block(64) | summary(64, 8, 16))": [None, Columns(64, 40, 8)],
    "causal & (block(2048) | summary(2048, 512))": [None],  # the columns are whole tiles as they are
    "causal & dilated(9, 5)": [None],  # too short to be worth another order
    "dilated(300, 4) | strided(4)": [Residues(4)],
    "causal & strided(1)": [None],
    "window(9) & strided(3)": [None],
    "~strided(3)": [None],
    "disjoint(causal & strided(64), ~causal & window(3))": [Residues(64), None],
    "causal & disjoint(window(64), strided(64) & ~window(64))": [None, Residues(64)],
}


@pytest.mark.parametrize("text", ORDERS)
def test_orders(text: str) -> None:
    positions = torch.arange(4096)
    assert [part.order for part in split(parse(text), positions, positions)] == ORDERS[text]


@pytest.mark.parametrize("text", ORDERS)
def test_parts_hold_every_pair_once(text: str) -> None:
    """Including lengths that no tile or stride divides, and overlapping terms."""
    pattern = parse(text)
    for n in (1, 65, 331, 700):
        expected = pattern.mask(torch.arange(n), torch.arange(n))
        assert torch.equal(times_held(pattern, n, 1)[0], expected.long()), n


def test_overlapping_parts_count_twice() -> None:
    held = times_held(parse("causal & disjoint(window(64), strided(8))"), 300, 1)[0]
    assert held.max() == 2
    assert held[100, 92] == 2
    assert held[100, 93] == 1


def computed(pattern: Pattern, n: int) -> int:
    like = {"biased": False, "device": torch.device("cpu"), "dtype": torch.float32}
    return sum(x.computed for x in find_plan(pattern.text, Positions(0, n), Positions(0, n), whole=0, **like).of(0))


@pytest.mark.parametrize("n", [4096, 4000])
@pytest.mark.parametrize(
    ("text", "excess"),
    [("causal & (window(64) | strided(64))", 2.6), ("causal & (block(64) | summary(64, 8))", 1.5)],
)
def test_few_scores_beyond_the_pairs(text: str, excess: float, n: int) -> None:
    pattern = parse(text)
    pairs = int(pattern.mask(torch.arange(n), torch.arange(n)).sum())
    assert pairs <= computed(pattern, n) <= excess * pairs


def test_a_long_sequence_by_residue() -> None:
    pattern, n = parse("causal & (window(256) | strided(512))"), 262_144
    like = {"biased": False, "device": torch.device("cpu"), "dtype": torch.float32}
    counted = count(lambda: find_plan(pattern.text, Positions(0, n), Positions(0, n), whole=0, **like))
    assert counted.largest <= 4 * n
    assert computed(pattern, n) <= n * (320 + 288)


def test_classes_of_unequal_length() -> None:
    lanes = arranged(torch.tensor([0, 1, 3, 6, 7, 9]), Residues(3), keys=True)
    assert lanes is not None
    assert lanes.positions.tolist() == [[[0, 3, 6, 9]], [[1, 7, 10, 13]], [[2, 5, 8, 11]]]
    assert lanes.real.sum((1, 2)).tolist() == [4, 2, 0]
    assert lanes.indices is not None
    assert lanes.indices[lanes.real].tolist() == [0, 2, 3, 5, 1, 4]
    assert arranged(torch.arange(50), Columns(64, 56, 8), keys=True) is None


def test_a_function_that_looks_up_data_is_followed_tile_by_tile() -> None:
    """Interval arithmetic cannot read it; its mask is computed for every tile, and never for all pairs at once."""
    segment = torch.randint(0, 9, (4096,), generator=torch.Generator().manual_seed(0))
    pattern, n = parse("causal") & Pattern(lambda i, j: segment[i] == segment[j]), 4096
    like = {"biased": False, "device": torch.device("cpu"), "dtype": torch.float32}
    found = []
    counted = count(lambda: found.append(find_plan(pattern.text, Positions(0, n), Positions(0, n), whole=0, **like)))
    assert counted.largest < n * n // 8
    assert sum(x.computed for x in found[0].of(0)) == 64 * 65 // 2 * 64 * 64
