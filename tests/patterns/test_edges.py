"""Lists of edges: literal sets, what spans may hold, what is no list, and the random graph that has a text."""

import copy
import pickle
import random

import pytest
import torch

from regard import patterns
from regard.core.errors import ConfigError, InputError, ShapeError
from regard.patterns import block_model, causal, edges, window
from regard.patterns.edges import dealt_blocks
from regard.patterns.intervals import Span


def drawn(nodes: int, count: int, seed: int = 0) -> tuple[torch.Tensor, set[tuple[int, int]]]:
    """Edges, some of them twice, and their set."""
    draw = random.Random(seed)
    listed = [(draw.randrange(nodes), draw.randrange(nodes)) for _ in range(count)]
    listed += listed[:3]
    return torch.tensor(listed).T, set(listed)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_masks_are_the_literal_sets(dtype: torch.dtype, loops: bool) -> None:
    for n in range(1, 41):
        listed, wanted = drawn(n, 2 * n, seed=n)
        wanted |= {(i, i) for i in range(n)} if loops else set()
        found = edges(listed.to(dtype), n, loops=loops).mask(torch.arange(n + 4), torch.arange(n + 2))
        assert {(i, j) for i, j in found.nonzero().tolist()} == wanted


def test_an_edge_that_is_there_twice_counts_once_and_edges_are_kept_in_order() -> None:
    rule = edges(torch.tensor([[2, 0, 2, 1], [0, 1, 0, 2]])).rule
    assert rule.pairs.tolist() == [[0, 1, 2], [1, 2, 0]]


def test_distances_are_those_of_the_edges() -> None:
    assert edges(torch.tensor([[9, 0], [2, 4]])).distances == (-4, 7)
    assert edges(torch.empty(2, 0, dtype=torch.long)).distances == (0, 0)


@pytest.mark.parametrize("seed", range(2))
def test_spans_never_miss_an_edge_and_know_the_squares_of_tiles(seed: int) -> None:
    listed, wanted = drawn(300, 40, seed)
    pattern, draw, known = edges(listed, 300), random.Random(seed + 50), 0

    def held(i: Span, j: Span) -> bool:
        return any(i.lo <= a <= i.hi and j.lo <= b <= j.hi for a, b in wanted)

    for _ in range(1000):
        low, side = (draw.randrange(320), draw.randrange(320)), (draw.randrange(60), draw.randrange(60))
        i, j = (Span(a, a + b, 1) for a, b in zip(low, side, strict=True))
        truth = pattern.over(i, j)
        assert not held(i, j) or bool(truth.may)
        assert not bool(truth.must) or held(i, j)
        known += not bool(truth.may)
    assert known > 300
    for tile in (16, 64):
        spans = [Span(low, low + tile - 1, 1) for low in range(0, 320, tile)]
        assert all(bool(pattern.over(i, j).may) == held(i, j) for i in spans for j in spans)
    for a, b in wanted:
        assert bool(pattern.over(Span(a, a, 0), Span(b, b, 0)).must)
        assert not bool(pattern.over(Span(300 + a, 400, 1), Span(b, b, 0)).may)


def test_edges_combine_with_other_patterns_and_say_what_is_alive() -> None:
    listed, wanted = drawn(50, 60)
    pattern = causal & (edges(listed, 50) | window(1))
    found = pattern.mask(torch.arange(50), torch.arange(50)).nonzero().tolist()
    assert {(i, j) for i, j in found} == {
        (i, j) for i in range(50) for j in range(i + 1) if (i, j) in wanted or abs(i - j) <= 1
    }
    alive = edges(listed, 50).alive(torch.arange(50), 40)
    needed = {j for i, j in wanted if i >= 40}
    assert needed <= set(alive.nonzero().flatten().tolist())


@pytest.mark.parametrize(
    ("pairs", "options", "error", "message"),
    [
        (torch.zeros(2, 3), {}, ShapeError, r"integers \(2, edges\).*got torch.float32 \(2, 3\)"),
        (torch.zeros(2, 3, dtype=torch.bool), {}, ShapeError, "got torch.bool"),
        (torch.zeros(3, 2, dtype=torch.long), {}, ShapeError, r"got torch.int64 \(3, 2\)"),
        (torch.zeros(2, dtype=torch.long), {}, ShapeError, r"\(2,\)"),
        ([[0], [1]], {}, ShapeError, "got list"),
        (torch.tensor([[0, 4], [1, 0]]), {"nodes": 4}, InputError, r"edge 1 is \(4, 0\), and nodes are 0 to 3; 1 of 2"),
        (torch.tensor([[0, -1], [1, 0]]), {}, InputError, r"edge 1 is \(-1, 0\)"),
        (torch.tensor([[0], [1]]), {"nodes": 0}, ConfigError, "nodes of edges must be an integer from 1 to"),
        (torch.tensor([[0], [1]]), {"nodes": 2.0}, ConfigError, "got 2.0"),
    ],
)
def test_bad_edges(pairs: object, options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        edges(pairs, **options)


def test_a_block_model_is_its_text_and_has_the_neighbours_that_it_says() -> None:
    pattern = block_model(600, 3, 12, 4, 7)
    assert pattern == patterns.parse("block_model(600, 3, 12, 4, 7)")
    assert torch.equal(pattern.rule.codes, patterns.parse(pattern.text).rule.codes)
    assert not torch.equal(pattern.rule.codes, block_model(600, 3, 12, 4, 8).rule.codes)
    i, j = pattern.rule.pairs
    of = dealt_blocks(600, 3, 7)
    assert of.bincount().tolist() == [200, 200, 200]
    own = of[i] == of[j]
    assert int((i == j).sum()) == 600
    assert abs(int((own & (i != j)).sum()) / 600 - 12) < 0.7  # pairs that were drawn twice count once
    assert abs(int((~own).sum()) / 600 - 4) < 0.2
    mask = pattern.mask(torch.arange(600), torch.arange(600))
    assert torch.equal(mask, mask.T)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("block_model(30, 2, 8, 1)", "at most half of all pairs: inside up to 7 and outside up to 7, got 8 and 1"),
        ("block_model(30, 2, 1, 8)", "got 1 and 8"),
        ("block_model(0, 2, 1, 1)", "nodes of a pattern must be an integer of at least 1"),
        ("block_model(30, 2, 1)", "block_model"),
    ],
)
def test_no_block_model(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        patterns.parse(text)


def test_a_list_of_edges_is_pickled_and_copied() -> None:
    listed, _ = drawn(20, 30)
    pattern = edges(listed, 20)
    i = torch.arange(20)
    for other in (pickle.loads(pickle.dumps(pattern)), copy.deepcopy(pattern)):
        assert torch.equal(other.mask(i, i), pattern.mask(i, i))
    assert pickle.loads(pickle.dumps(block_model(20, 2, 3, 1))) == block_model(20, 2, 3, 1)
