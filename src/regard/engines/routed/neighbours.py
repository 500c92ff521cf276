"""Nearest neighbours by direction among stored points, by locality-sensitive hashing."""

import math
from collections.abc import Iterator
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.engines.routed import near_one, room
from regard.engines.routed.hashes import And, Or, collision_probability, cross_polytope_hash, sensitivity
from regard.errors import ConfigError, InputError, ShapeError
from regard.features.norms import unit
from regard.precision import accumulation_dtype
from regard.randomness import generator
from regard.types_of import validate

__all__ = ["NearestNeighbours", "Neighbours"]

LARGEST = 62
"""bits of the number of a bucket of a table"""


class Neighbours(NamedTuple):
    """The points that a search found, the nearest first."""

    indices: Int[Tensor, "queries count"]
    """of the points, -1 where no further candidate is"""
    cosines: Float[Tensor, "queries count"]
    """of the angles to them, -inf where no further candidate is"""
    candidates: Int[Tensor, " queries"]
    """how many points each query was compared with"""


class _Table(NamedTuple):
    """The points in the order of their buckets."""

    rotations: Float[Tensor, "hashes dim half"]
    buckets: Int[Tensor, " points"]
    points: Int[Tensor, " points"]


@final
class NearestNeighbours:
    """Points that are searched for those at the smallest angle to a query, without comparing it with each of them.

    A point is a candidate if all `hashes` hashes of some of the `tables` tables agree with the query's: at an angle
    with collision probability p of one hash this happens with probability 1 - (1 - p^hashes)^tables, `probability`.
    Candidates are compared exactly; points of the same cosine come in the order of their indices.

    Cost: O(tables points (hashes num_buckets dim + log points)) once, O(tables points) memory; of a query the same
    hashes and O(candidates dim). Lost: neighbours that are no candidates, see `recall`.

    Args:
        points: what is searched, of any lengths but 0.
        tables: more find more (OR).
        hashes: of a table; more leave fewer candidates (AND).
        num_buckets: of a hash, even; 2 is the sign hash, others the cross-polytope hash.
        seed: of the rotations.

    Raises:
        ConfigError: `tables` or `hashes` below 1, `num_buckets` odd or below 2, one of them no integer, more buckets of
            a table than 2^62.
        ShapeError: what is no matrix of real numbers, or an empty one.
        InputError: a point without a direction: zeros, NaN, infinite.

    Example:
        >>> points = torch.randn(1000, 16, generator=torch.Generator().manual_seed(0))
        >>> index = NearestNeighbours(points, tables=16, hashes=6)
        >>> found = index.search(points[:3] + 0.1, 2)
        >>> found.indices[:, 0].tolist(), bool((found.candidates < 700).all())
        ([0, 1, 2], True)

    Source: Indyk and Motwani 1998, Approximate nearest neighbors, section 4.
    """

    def __init__(
        self,
        points: Float[Tensor, "points dim"],
        *,
        tables: int = 8,
        hashes: int = 8,
        num_buckets: int = 2,
        seed: int = 0,
    ) -> None:
        validate("NearestNeighbours", "num_buckets", num_buckets, int)
        for name, value in (("tables", tables), ("hashes", hashes)):
            validate("NearestNeighbours", name, value, int)
            if value < 1:
                raise ConfigError(f"NearestNeighbours: {name} must be at least 1, got {value}")
        if num_buckets < 2 or num_buckets % 2:
            raise ConfigError(f"NearestNeighbours: num_buckets must be even and at least 2, got {num_buckets}")
        if hashes * math.log2(num_buckets) > LARGEST:
            raise ConfigError(
                f"NearestNeighbours: {hashes} hashes of {num_buckets} buckets make more than 2^{LARGEST}; lower one"
            )
        self.tables, self.hashes, self.num_buckets = tables, hashes, num_buckets
        self._points = _directions("points", points)
        if not len(self._points):
            raise ShapeError("NearestNeighbours: there are no points")
        shape = hashes, self._points.shape[1], num_buckets // 2
        self._tables: list[_Table] = []
        for table in range(tables):
            rotations = torch.randn(shape, generator=generator(seed, "neighbours", table)).to(self._points)
            buckets, order = self._buckets(self._points, rotations).sort(stable=True)
            self._tables.append(_Table(rotations, buckets, order))

    def __len__(self) -> int:
        return len(self._points)

    def probability(self, angle: float) -> float:
        """The probability, over seeds, that a point at an angle to a query is a candidate.

        Raises:
            InputError: an angle outside of 0 to pi.
        """
        one = collision_probability(angle, self.num_buckets)
        return sensitivity(one, [And(self.hashes), Or(self.tables)])

    def search(self, queries: Float[Tensor, "queries dim"], count: int) -> Neighbours:
        """The nearest candidates of each query.

        Args:
            queries: of any lengths but 0.
            count: neighbours of each.

        Raises:
            ConfigError: a count that is no integer.
            InputError: a count below 1 or above the number of points; a query without a direction.
            ShapeError: what is no matrix of real numbers, or another width.
        """
        queries = self._asked(queries, count)
        parts = [self._nearest(queries, *pairs, count) for pairs in self._candidates(queries)]
        return _joined(parts, queries, count)

    def exact(self, queries: Float[Tensor, "queries dim"], count: int) -> Neighbours:
        """The nearest points of each query, by comparing it with every one: O(queries points dim).

        Raises:
            ConfigError: as `search`.
            InputError: as `search`.
            ShapeError: as `search`.
        """
        queries = self._asked(queries, count)
        every, together = torch.arange(len(self), device=queries.device), max(1, room(queries) // len(self))
        parts: list[Neighbours] = []
        for first in range(0, len(queries), together):
            rows = torch.arange(first, min(first + together, len(queries)), device=queries.device)
            pairs = rows.repeat_interleave(len(self)), every.repeat(len(rows))
            parts.append(self._nearest(queries, rows, *pairs, count))
        return _joined(parts, queries, count)

    def recall(self, queries: Float[Tensor, "queries dim"], count: int) -> float:
        """The share of the `count` nearest points of the queries that `search` finds; it costs what `exact` does.

        Raises:
            ConfigError: as `search`.
            InputError: as `search`; no queries.
            ShapeError: as `search`.
        """
        if not len(queries):
            raise InputError("NearestNeighbours: there is no recall without queries")
        found, wanted = (each(queries, count).indices for each in (self.search, self.exact))
        return float((found[:, :, None] == wanted[:, None]).any(1).double().mean())

    def _asked(self, queries: Tensor, count: int) -> Tensor:
        """Directions of queries."""
        validate("NearestNeighbours", "count", count, int)
        if not 1 <= count <= len(self):
            raise InputError(f"NearestNeighbours: count lies between 1 and the {len(self)} points, got {count}")
        queries = _directions("queries", queries)
        if queries.shape[1] != self._points.shape[1]:
            raise ShapeError(
                f"NearestNeighbours: points have width {self._points.shape[1]}, queries {queries.shape[1]}"
            )
        return queries.to(self._points)

    def _buckets(self, x: Tensor, rotations: Tensor) -> Int[Tensor, " rows"]:
        """The buckets of all hashes of a table as one number."""
        digits = self.num_buckets ** torch.arange(self.hashes, device=x.device)
        return (cross_polytope_hash(x, rotations).long() * digits).sum(-1)

    def _candidates(self, queries: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of some queries at a time: their rows; rows and points of all pairs that meet, each once, in that order."""
        ranges: list[tuple[Tensor, Tensor]] = []
        for table in self._tables:
            asked = self._buckets(queries, table.rotations)
            ends = torch.searchsorted(table.buckets, asked), torch.searchsorted(table.buckets, asked, right=True)
            ranges.append(ends)
        met = torch.stack([high - low for low, high in ranges]).sum(0)
        _, sizes = ((met.cumsum(0) - met) // room(queries)).unique_consecutive(return_counts=True)
        for rows in torch.arange(len(queries), device=queries.device).split(sizes.tolist()):
            pairs: list[Tensor] = []
            for table, (low, high) in zip(self._tables, ranges, strict=True):
                size = (high - low)[rows]
                row = rows.repeat_interleave(size)
                inside = torch.arange(len(row), device=rows.device) - (size.cumsum(0) - size).repeat_interleave(size)
                pairs.append(row * len(self) + table.points[low[row] + inside])
            each = torch.cat(pairs).unique()
            yield rows, each // len(self), each % len(self)

    def _nearest(self, queries: Tensor, rows: Tensor, row: Tensor, point: Tensor, count: int) -> Neighbours:
        """The best of pairs that are in order of (row, point)."""
        step = max(1, room(queries) // queries.shape[1])
        parts = zip(row.split(step), point.split(step), strict=True)
        cosines = torch.cat([(queries[i] * self._points[j]).sum(-1) for i, j in parts])
        order = cosines.argsort(descending=True, stable=True)
        order = order[row[order].argsort(stable=True)]
        size = torch.bincount(row - rows[0], minlength=len(rows))
        place = torch.arange(len(row), device=row.device) - (size.cumsum(0) - size).repeat_interleave(size)
        best = place < count
        at, order = (row - rows[0])[best], order[best]
        shape = len(rows), count
        indices = point.new_full(shape, -1).index_put((at, place[best]), point[order])
        nearest = cosines.new_full(shape, -math.inf).index_put((at, place[best]), cosines[order])
        return Neighbours(indices, nearest, size)


def _directions(name: str, x: Tensor) -> Float[Tensor, "rows dim"]:
    """x / |x| of each row, in float32 at least."""
    if x.dim() != 2 or not x.shape[1] or not x.is_floating_point():
        raise ShapeError(
            f"NearestNeighbours: {name} are a matrix (rows, dim) of floats, got {tuple(x.shape)}, {x.dtype}"
        )
    x = x.detach().to(accumulation_dtype(x.dtype))
    wrong = (~x.isfinite().all(-1) | ~x.any(-1)).nonzero()
    if len(wrong):
        raise InputError(f"NearestNeighbours: {name}[{int(wrong[0])}] has no direction: it is zero, or not finite")
    return unit(near_one(x), 0.0)


def _joined(parts: list[Neighbours], queries: Tensor, count: int) -> Neighbours:
    """What was found for all queries."""
    if parts:
        return Neighbours(*(torch.cat(each) for each in zip(*parts, strict=True)))
    nothing = torch.zeros(0, count, dtype=torch.long, device=queries.device)
    return Neighbours(nothing, nothing.to(queries), nothing[:, :0].sum(-1))
