"""Nearest neighbours by hashing against brute force: candidates, their order, recall, refusals."""

import math

import pytest
import torch
from torch import Tensor

from regard.engines.routed import neighbours
from regard.engines.routed.hashes import cross_polytope_hash
from regard.engines.routed.neighbours import NearestNeighbours
from regard.errors import ConfigError, InputError, ShapeError


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def met(index: NearestNeighbours, points: Tensor, queries: Tensor) -> Tensor:
    """Whether each point has all hashes of a table in common with each query, (queries, points)."""
    tables = []
    for table in index._tables:
        ours, theirs = (cross_polytope_hash(x, table.rotations) for x in (queries, points))
        tables.append((ours[:, None] == theirs[None]).all(-1))
    return torch.stack(tables).any(0)


@pytest.mark.parametrize("options", [{"tables": 3, "hashes": 6}, {"tables": 2, "hashes": 2, "num_buckets": 6}])
@pytest.mark.parametrize("room", [1 << 18, 40])
def test_a_search_is_brute_force_over_the_candidates(options, room, monkeypatch) -> None:
    """In one piece and in many."""
    monkeypatch.setattr(neighbours, "room", lambda x: room)
    points, queries = 2 * randn(200, 7), randn(60, 7, seed=1)
    index = NearestNeighbours(points, seed=4, **options)
    found, candidate = index.search(queries, 5), met(index, points, queries)
    assert torch.equal(found.candidates, candidate.sum(1))
    assert candidate.sum(1).min() < 5 < candidate.sum(1).max() < 200, "a case is missing"
    cosines = torch.nn.functional.cosine_similarity(queries[:, None], points[None], dim=-1)
    wanted = cosines.masked_fill(~candidate, -math.inf).topk(5)
    torch.testing.assert_close(found.cosines, wanted.values, rtol=0, atol=1e-12)
    assert torch.equal(found.indices, wanted.indices.masked_fill(wanted.values.isinf(), -1))
    exact = index.exact(queries, 5)
    assert torch.equal(exact.indices, cosines.topk(5).indices)
    assert (exact.candidates == 200).all()
    shares = [
        len(set(one.tolist()) & set(other.tolist())) / 5
        for one, other in zip(found.indices, exact.indices, strict=True)
    ]
    assert index.recall(queries, 5) == pytest.approx(sum(shares) / 60, abs=1e-12)
    assert 0.05 < index.recall(queries, 5) < 0.95


def test_candidates_are_as_many_as_the_probability_says() -> None:
    """One query and points at one angle to it, over seeds: the answers of one seed depend on each other."""
    angle, dim, seeds = 0.6, 6, 150
    other = torch.nn.functional.normalize(randn(20, dim, seed=1) * (torch.arange(dim) > 0), dim=-1)
    points = other * math.sin(angle)
    points[:, 0] = math.cos(angle)
    query = torch.eye(dim, dtype=torch.float64)[:1]
    for options in ({"tables": 4, "hashes": 5}, {"tables": 3, "hashes": 2, "num_buckets": 8}):
        shares = torch.stack(
            [
                NearestNeighbours(points, seed=seed, **options).search(query, 1).candidates.double() / 20
                for seed in range(seeds)
            ]
        )
        error = shares.std().item() / seeds**0.5
        assert 5 * error < 0.1
        assert abs(shares.mean().item() - NearestNeighbours(points, **options).probability(angle)) < 5 * error


def test_more_tables_find_more_and_more_hashes_compare_less() -> None:
    points = randn(2000, 12)
    queries = points[:100] + 0.3 * randn(100, 12, seed=1)

    def told(**options: int) -> tuple[float, float]:
        index = NearestNeighbours(points, **options)
        return index.recall(queries, 10), index.search(queries, 1).candidates.double().mean().item()

    recalls, compared = zip(*(told(tables=tables, hashes=6) for tables in (1, 4, 16)), strict=True)
    assert recalls[0] + 0.1 < recalls[1] < recalls[2] - 0.1
    assert recalls[2] > 0.75
    assert compared[0] < compared[1] < compared[2] < 1500
    few, many = told(tables=4, hashes=2), told(tables=4, hashes=8)
    assert few[1] > 4 * many[1]
    assert few[0] > many[0]


def test_equal_cosines_come_in_the_order_of_their_indices_and_lengths_do_not_matter() -> None:
    one = randn(1, 5)
    points = torch.cat([-one, one, 5 * one, 1e-3 * one])
    found = NearestNeighbours(points, tables=2, hashes=3).search(1e3 * one.float().double(), 4)
    assert found.indices.tolist() == [[1, 2, 3, -1]]
    assert found.cosines[0, 3] == -math.inf
    assert found.candidates.tolist() == [3]


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        (torch.float32, (2.0**-70, 2.0**-76, 2.0**-110, 2.0**120)),
        (torch.float64, (2.0**-570, 2.0**-900, 2.0**1000)),
    ],
)
def test_no_length_is_too_small_or_too_large(dtype: torch.dtype, sizes: tuple[float, ...]) -> None:
    points, queries = randn(200, 8, dtype=dtype), randn(50, 8, seed=1, dtype=dtype)
    options = {"tables": 4, "hashes": 3, "num_buckets": 4}
    exact, found = (getattr(NearestNeighbours(points, **options), name)(queries, 3) for name in ("exact", "search"))
    lengths = torch.linalg.vector_norm(points.double(), dim=1), torch.linalg.vector_norm(queries.double(), dim=1)
    cosines = queries.double() @ points.double().mT / lengths[1][:, None] / lengths[0]
    assert torch.equal(exact.indices, cosines.topk(3).indices)
    for size in sizes:
        index = NearestNeighbours(size * points, **options)
        for wanted, got in ((exact, index.exact(size * queries, 3)), (found, index.search(size * queries, 3))):
            assert all(torch.equal(x, y) for x, y in zip(wanted, got, strict=True))


def test_no_queries_and_one_point() -> None:
    index = NearestNeighbours(randn(1, 3, dtype=torch.float32))
    nothing = index.search(torch.zeros(0, 3), 1)
    assert [tuple(x.shape) for x in nothing] == [(0, 1), (0, 1), (0,)]
    assert [tuple(x.shape) for x in index.exact(torch.zeros(0, 3), 1)] == [(0, 1), (0, 1), (0,)]
    assert len(index) == 1
    assert index.exact(randn(2, 3), 1).indices.tolist() == [[0], [0]]


def test_the_seed_says_all() -> None:
    points, queries, state = randn(300, 8), randn(20, 8, seed=1), torch.get_rng_state()
    one, again, other = (NearestNeighbours(points, hashes=6, seed=seed).search(queries, 3) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(x, y) for x, y in zip(one, again, strict=True))
    assert not torch.equal(one.candidates, other.candidates)


def test_refusals() -> None:
    points = randn(10, 4)
    for options, message in (
        ({"tables": 0}, "tables must be at least 1"),
        ({"hashes": 0}, "hashes must be at least 1"),
        ({"num_buckets": 3}, "even and at least 2"),
        ({"num_buckets": 1}, "even and at least 2"),
        ({"num_buckets": 0}, "even and at least 2"),
        ({"hashes": 63}, r"more than 2\^62"),
        ({"hashes": 1.5}, r"hashes=1\.5 is not valid"),
        ({"tables": 1.5}, r"tables=1\.5 is not valid"),
        ({"num_buckets": 2.0}, r"num_buckets=2\.0 is not valid"),
    ):
        with pytest.raises(ConfigError, match=message):
            NearestNeighbours(points, **options)
    for wrong in (points[0], points.long(), points[:, :0], points[None]):
        with pytest.raises(ShapeError, match="points are a matrix"):
            NearestNeighbours(wrong)
    with pytest.raises(ShapeError, match="no points"):
        NearestNeighbours(points[:0])
    for value in (0.0, math.nan, math.inf):
        spoilt = points.clone()
        spoilt[7] = value
        with pytest.raises(InputError, match=r"points\[7\] has no direction"):
            NearestNeighbours(spoilt)
        with pytest.raises(InputError, match=r"queries\[7\] has no direction"):
            NearestNeighbours(points).search(spoilt, 1)
    index = NearestNeighbours(points)
    for each in (index.search, index.exact, index.recall):
        with pytest.raises(ConfigError, match=r"count=1\.5 is not valid"):
            each(points, 1.5)
        for count in (0, 11):
            with pytest.raises(InputError, match=f"the 10 points, got {count}"):
                each(points, count)
        with pytest.raises(ShapeError, match="points have width 4, queries 3"):
            each(points[:, :3], 1)
    with pytest.raises(InputError, match="no recall without queries"):
        index.recall(points[:0], 1)
    with pytest.raises(InputError, match="between 0 and pi"):
        index.probability(4.0)
