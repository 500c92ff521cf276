"""The engine of bucketed attention: softmax over the keys that share a code with the query in some round.

Each round sorts queries and keys by (code, position) and cuts every run of equal codes into tiles of its own, so that
a token's place in its tiles depends on earlier tokens only, and a hidden key is an exact zero. One online softmax per
query runs through all tiles and rounds; a round skips pairs that an earlier round has counted. The backward pass
walks the same tiles and computes their weights again.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.precision import accumulation_dtype
from regard.engines.operator import Wanted, operator
from regard.engines.routed import LOG2E, Averages, accumulate, blank_averages, exact, lost, room

ABSENT = float(1 << 25)
"""the position of an empty place; positions and codes are exact floats below 2^24"""


def tile_size(crowd: int) -> int:
    """Positions in a tile where a run of equal codes holds about so many tokens."""
    return 64 if crowd > 48 else 32 if crowd > 24 else 16


class Rule(NamedTuple):
    """The pairs that count. Everything here is fixed by the options and shapes of a call."""

    causal: bool
    itself: bool
    """whether a query may see its own position"""
    duplicates: bool
    """whether a pair counts once per round in which it matches"""
    choices: int
    """codes are below this"""
    crowd: int
    """about how many tokens have one code"""

    @property
    def tile(self) -> int:
        """Positions in a tile. Decided in the operator, so that a compiled call does not depend on its length."""
        return tile_size(self.crowd)


class Bucketing(NamedTuple):
    """softmax(scale q k^T) v over the pairs that match in some round."""

    q: Tensor
    """(batch, heads, queries, dim)"""
    k: Tensor
    """(batch, kv_heads, keys, dim)"""
    v: Tensor
    """(batch, kv_heads, keys, value)"""
    query_codes: Tensor
    """(batch, heads, queries, rounds), in [0, choices)"""
    key_codes: Tensor
    """(batch, kv_heads, keys, rounds)"""
    query_mask: Tensor | None
    """(batch, queries), True = wants an answer; the others get 0"""
    key_mask: Tensor | None
    """(batch, keys), True = keep"""
    scale: float
    """of the logits"""
    causal: bool
    """this and what follows: see `Rule`"""
    itself: bool
    duplicates: bool
    choices: int
    crowd: int

    @property
    def rule(self) -> Rule:
        return Rule(self.causal, self.itself, self.duplicates, self.choices, self.crowd)


class Tiles(NamedTuple):
    """Sorted items cut into tiles, each within one run of equal codes."""

    rank: Tensor
    """(items,) what they are sorted by"""
    of: Tensor
    """(items,) the tile of each"""
    first: Tensor
    """(tiles,) the first item of each"""
    rows: Tensor
    """(tiles + 1, size) the row of each place; the last tile is empty"""


def _tiles(rank: Tensor, span: int, size: int) -> Tiles:
    """Sort items by rank and cut runs of equal rank // span into tiles; the empty row is the one behind the last."""
    rank, order = rank.sort()
    run = rank // span
    starts = torch.ones_like(run, dtype=torch.bool)
    starts[1:] = run[1:] != run[:-1]
    start = starts.nonzero().flatten()
    count = torch.diff(start, append=start.new_tensor([len(run)]))
    tiles = (count + size - 1) // size
    label = starts.cumsum(0) - 1
    inside = torch.arange(len(run), device=run.device) - start[label]
    of = (tiles.cumsum(0) - tiles)[label] + inside // size
    rows = order.new_full(((int(tiles.sum()) + 1) * size,), len(run))
    rows[of * size + inside % size] = order
    return Tiles(rank, of, (inside % size == 0).nonzero().flatten(), rows.view(-1, size))


class Items(NamedTuple):
    """Queries, or keys, that take part."""

    matrix: Tensor
    """(items + 1, width + 1 + rounds): vectors, position, codes; the last row is empty"""
    head: Tensor
    """(items,) batch x head"""
    at: Tensor
    """(items,) position"""
    codes: Tensor
    """(items, rounds)"""
    flat: Tensor | None
    """(items,) where each is among all; None: all take part, in order"""

    def gather_rows(self, x: Tensor) -> Tensor:
        """Rows for the items, and zeros for the empty one, of (batch, heads, length, width)."""
        x = x.flatten(0, 2)
        return F.pad(x if self.flat is None else x[self.flat], (0, 0, 0, 1))

    def put(self, x: Tensor, shape: tuple[int, ...], nothing: float = 0.0) -> Tensor:
        """Rows of the items and the empty one as (batch, heads, length, width); `nothing` where no item is."""
        x = x[:-1]
        if self.flat is not None:
            x = x.new_full((math.prod(shape[:3]), x.shape[1]), nothing).index_copy_(0, self.flat, x)
        return x.reshape(*shape[:3], x.shape[1])


def _items(
    parts: list[Tensor], codes: Tensor, first: int, nowhere: float, kept: Tensor | None, dtype: torch.dtype
) -> Items:
    """Items from (batch, heads, length, ...) tensors; `kept` (batch, heads or 1, length) picks some."""
    batch, heads, length, rounds = codes.shape
    every = codes.new_ones(1, 1, 1) if kept is None else kept
    row, head, at = where = every.expand(batch, heads, length).nonzero(as_tuple=True)
    *vectors, codes = (x.flatten(0, 2) if kept is None else x[where] for x in (*parts, codes))
    head = row * heads + head
    columns = [*vectors, (at + first)[:, None], codes]
    matrix = torch.empty(len(at) + 1, sum(x.shape[1] for x in columns), dtype=dtype, device=codes.device)
    for x, to in zip(columns, matrix[:-1].split([x.shape[1] for x in columns], 1), strict=True):
        to.copy_(x)
    matrix[-1] = 0
    matrix[-1, -rounds - 1] = nowhere
    return Items(matrix, head, at + first, codes.long(), None if kept is None else head * length + at)


class Walk:
    """The tiles of a call, and the pairs of them that meet."""

    def __init__(self, x: Bucketing) -> None:
        q, k, v, query_codes, key_codes, query_mask, key_mask, scale, *_ = x
        rule = x.rule
        batch, kv_heads, keys, self.dim = k.shape
        queries, dtype = q.shape[2], accumulation_dtype(q.dtype)
        self.rule, self.group, self.span = rule, q.shape[1] // kv_heads, max(queries, keys)
        kept = None if key_mask is None else key_mask[:, None]
        if queries == 1:  # decoding: only keys in the query's buckets matter
            asking = query_codes.view(batch, kv_heads, self.group, 1, query_codes.shape[-1])
            met = (asking == key_codes[:, :, None]).any(-1).any(2)
            kept = met if kept is None else met & kept
        past, real = keys - queries if rule.causal else 0, None if query_mask is None else query_mask[:, None]
        self.queries = _items([q.to(dtype) * (scale * LOG2E)], query_codes, past, -1.0, real, dtype)
        self.keys = _items([k, v], key_codes, 0, ABSENT, kept, dtype)
        # Whole cache lines, since a product may round otherwise on unaligned rows; decoding has no future to leak.
        self.size = self.group if queries == 1 else rule.tile
        self.together = max(1, min(room(q) // (self.size * rule.tile), batch * q.shape[1] * queries))
        self.logits = self.hidden = self.near = q.new_empty(0, dtype=dtype)

    def steps(self) -> Iterator[tuple[Tensor, Tensor, Iterator[tuple[Tensor, Tensor, Tensor]]]]:
        """For some tiles of queries at a time: their rows, what these hold, and the tiles of keys that they meet.

        Of these tiles, one after the other: their rows, what these hold, and the logits, see `scores`. Every step has
        the same shapes, filled up with empty tiles: a product over more tiles may round otherwise, and how many there
        are depends on the future.
        """
        queries, keys, rule = self.queries, self.keys, self.rule
        if not (len(queries.at) and len(keys.at)):
            return
        head, member = queries.head // self.group, queries.head % self.group
        for which in range(keys.codes.shape[1]):
            # Position before member of the group: a place in a tile depends on the past alone.
            rank = ((head * rule.choices + queries.codes[:, which]) * self.span + queries.at) * self.group + member
            asking = _tiles(rank, self.span * self.group, self.size)
            rank = (keys.head * rule.choices + keys.codes[:, which]) * self.span + keys.at
            answering = _tiles(rank, self.span, rule.tile)
            start, count = self._meeting(asking, answering)
            order = count.argsort(descending=True, stable=True)
            most = count[order[:: self.together]].tolist()
            order = F.pad(order, (0, len(most) * self.together - len(order)), value=len(count))
            start, count = F.pad(start, (0, 1)), F.pad(count, (0, 1))
            for tiles, meets in zip(order.split(self.together), most, strict=True):
                if not meets:
                    break
                at = asking.rows.index_select(0, tiles).flatten()
                query = queries.matrix.index_select(0, at).view(-1, self.size, queries.matrix.shape[1])
                yield at, query, self._met(query, answering, start[tiles], count[tiles], meets, which)

    def _meeting(self, asking: Tiles, answering: Tiles) -> tuple[Tensor, Tensor]:
        """The first tile of keys that each tile of queries meets, and how many."""
        last = torch.cat([asking.first[1:], asking.first.new_tensor([len(asking.rank)])]) - 1
        run = asking.rank[asking.first] // (self.span * self.group)
        end = asking.rank[last] // self.group + 1 if self.rule.causal else (run + 1) * self.span
        low = torch.searchsorted(answering.rank, run * self.span)
        high = torch.searchsorted(answering.rank, end)
        start = answering.of[low.clamp(max=len(answering.of) - 1)]
        return start, torch.where(high > low, answering.of[(high - 1).clamp(min=0)] - start + 1, 0)

    def _met(
        self, query: Tensor, answering: Tiles, start: Tensor, count: Tensor, meets: int, which: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Of some tiles of queries, the tiles of keys that they meet, one for each at a time."""
        nothing, matrix = len(answering.rows) - 1, self.keys.matrix
        for step in range(meets):
            rows = answering.rows.index_select(0, torch.where(count > step, start + step, nothing)).flatten()
            key = matrix.index_select(0, rows).view(-1, self.rule.tile, matrix.shape[1])
            yield rows, key, self.scores(query, key, which)

    def scores(self, query: Tensor, key: Tensor, which: int) -> Tensor:
        """Logits (tiles, queries, keys) in base 2, least or -inf where a pair does not count; in one buffer."""
        rule, shape = self.rule, (len(query), query.shape[1], key.shape[1])
        if self.logits.shape != shape:
            self.logits, self.hidden, self.near = (query.new_empty(shape) for _ in range(3))
        logits, hidden = self.logits, self.hidden
        torch.bmm(query[..., : self.dim], key[..., : self.dim].mT, out=logits)
        # Comparisons that write numbers: those that make booleans, and masked_fill_, are ten times slower on a CPU; and
        # of each key in one piece, since reading across rows takes six times as long.
        place = -self.keys.codes.shape[1] - 1
        there, here = key[..., place:].mT.contiguous().split(1, 1), query[..., place:].split(1, -1)
        if rule.causal:
            (torch.gt if rule.itself else torch.ge)(there[0], here[0], out=hidden)
        else:
            empty = (there[0] == ABSENT).to(logits.dtype)
            if rule.itself:
                hidden.copy_(empty.expand_as(hidden))
            else:
                torch.eq(there[0], here[0], out=hidden).add_(empty)
        for earlier in range(1, 1 if rule.duplicates else 1 + which):
            hidden.add_(torch.eq(there[earlier], here[earlier], out=self.near))
        if which and not rule.duplicates:
            hidden.clamp_(max=1)
        largest = torch.finfo(logits.dtype).max  # twice, since a logit may be as large
        return logits.sub_(hidden, alpha=largest).sub_(hidden, alpha=largest)


def _averages(x: Bucketing) -> Averages:
    """Values and log-sum-exps; NaN reaches every row of its tiles."""
    value, walk = x.v.shape[3], Walk(x)
    # Per query: the highest logit so far, and against it the sum of weights and of weighted values.
    peaks = walk.queries.matrix.new_zeros(len(walk.queries.matrix), 2)
    peaks[:, 0] = lowest = torch.finfo(peaks.dtype).min
    sums = peaks.new_zeros(len(peaks), value)
    for at, _, meets in walk.steps():
        high, mass = peaks.index_select(0, at).view(-1, walk.size, 2).split(1, -1)
        mean = sums.index_select(0, at).view(-1, walk.size, value)
        for _, key, odds in meets:
            higher = torch.maximum(high, odds.amax(-1, keepdim=True))
            fade = torch.exp2(high - higher)
            odds.sub_(higher).exp2_()
            mass = mass * fade + odds.sum(-1, keepdim=True)
            mean.mul_(fade).baddbmm_(odds, key[..., walk.dim : walk.dim + value])
            high = higher
        peaks.index_copy_(0, at, torch.cat([high, mass], -1).flatten(0, 1))
        sums.index_copy_(0, at, mean.flatten(0, 1))
    top, total = peaks.split(1, -1)
    seen = ~(top <= lowest)  # NaN stays
    values = walk.queries.put(torch.where(seen, sums / total, 0.0), x.q.shape)
    lse = torch.where(seen, top + total.log2(), float("-inf"))
    return Averages(values, walk.queries.put(lse, x.q.shape, float("-inf"))[..., 0])


def forward(x: Bucketing) -> Averages:
    """values, and the log-sum-exp of each query in base 2; 0 and -inf where no key matches. At least float32.

    What holds NaN, or reads a key or value that does, is NaN.
    """
    q, k, v = x[:3]
    with exact(q):
        values, lse = _averages(x)
        asks = lost(q)
        if x.query_mask is not None:
            asks = asks & x.query_mask[:, None, :, None]
        if bool(asks.any() | lost(values).any()):
            # In a tile NaN times a weight of 0 reaches every row. So without it, and then: which rows read any?
            spoilt = lost(k) | v.isnan()
            q, k, v = (y.masked_fill(y.isnan(), 0) for y in (q, k, v))
            values, lse = _averages(x._replace(q=q, k=k, v=v))
            reading = x._replace(q=torch.zeros_like(q), k=torch.zeros_like(k), v=spoilt.to(v.dtype))
            values.masked_fill_(asks | (_averages(reading).values > 0), math.nan)
            lse.masked_fill_(asks[..., 0], math.nan)
    return Averages(values, lse)


def backward(x: Bucketing, out: Averages, of: Averages, _wanted: Wanted) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    q, v, (values, lse), grad = x.q, x.v, out, of.values
    value = v.shape[3]
    with exact(q):
        walk = Walk(x)
        dim, queries, keys = walk.dim, walk.queries, walk.keys
        # What each query brings: its gradient, the mean gradient of its weights, its log-sum-exp (inf: no weights).
        mean = (grad * values).sum(-1, keepdim=True)
        norm = torch.where(lse == float("-inf"), float("inf"), lse)[..., None]
        brings = queries.gather_rows(torch.cat([grad.to(values.dtype), mean, norm], -1))
        brings[-1, -1] = float("inf")
        dq = brings.new_zeros(len(queries.matrix), dim)
        dk, dv = (brings.new_zeros(len(keys.matrix), width) for width in (dim, value))
        slope = q.new_empty(0)
        for at, query, meets in walk.steps():
            slopes, mean, norm = brings.index_select(0, at).view(-1, walk.size, value + 2).split([value, 1, 1], -1)
            change = torch.zeros_like(query[..., :dim])
            for rows, key, weights in meets:
                weights.sub_(norm).exp2_().clamp_(max=1)  # large logits may round otherwise than in the forward pass
                accumulate(dv, rows, torch.bmm(weights.mT, slopes).flatten(0, 1))
                slope = torch.empty_like(weights) if slope.shape != weights.shape else slope
                torch.bmm(slopes, key[..., dim : dim + value].mT, out=slope)
                slope.sub_(mean).mul_(weights)
                change.baddbmm_(slope, key[..., :dim])
                accumulate(dk, rows, torch.bmm(slope.mT, query[..., :dim]).flatten(0, 1))
            accumulate(dq, at, change.flatten(0, 1))
        dq.mul_(x.scale)
        dk.div_(LOG2E)  # queries were scaled by scale x log2(e)
        return queries.put(dq, q.shape), keys.put(dk, x.k.shape), keys.put(dv, v.shape)


bucketed = operator("bucketed", forward, backward, fake=blank_averages, wrt=("q", "k", "v"), keeps=("values", "lse"))
