"""From a pattern to the tiles that hold its pairs, without any tensor of queries x keys.

Positions are cut into tiles. Interval arithmetic says which pairs of tiles are empty, full or partial, first for
squares of 16 x 16 tiles and then inside those that are not empty, so the work follows the pairs that are kept. Query
tiles that see the same arrangement of masks form a group, which one batched product serves.
"""

import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.masks import Pattern, resolve
from regard.spans import Span

TILE = 64
BUDGET = 1 << 18
"""Scores in one buffer, about 1 MiB in float32: a core's second-level cache."""
PAIRS = 1 << 16
"""Pairs whose exact mask is computed at once."""
COARSE = 16
CACHED, CACHED_BYTES = 64, 1 << 28
"""Layouts kept, and bytes of their masks; the least recently used goes first."""
FEW_MASKS = 256
"""Up to this many distinct masks are kept as numbers to add, which is faster; more as booleans, which is smaller."""


class Step(NamedTuple):
    """What one batched product covers: query tiles `rows` of a group and their key tiles.

    Where query tiles are consecutive, `row` is the first; where their key tiles are runs that all start at `key` or at
    `key`, `key` + 1, ..., `advance` is 0 or 1. Otherwise the index tensors say which tiles to gather.
    """

    count: int
    row: int | None
    rows: Int[Tensor, " count"]
    key: int | None
    advance: int
    keys: Int[Tensor, " all_tiles"]


class Run(NamedTuple):
    """Key lanes [start, stop) of a group that lie at distance `base` + query lane - (key lane - start)."""

    start: int
    stop: int
    base: int


@dataclass(frozen=True)
class Group:
    """Query tiles that see the same arrangement: `slots` key tiles each, with the same masks in the same slots."""

    slots: int
    masks: tuple[tuple[int, Float[Tensor, "*heads tile tile"] | Bool[Tensor, "*heads tile tile"]], ...]
    """(slot, 0 or -inf to add, or True where -inf goes) of the slots that are not full"""
    steps: tuple[Step, ...]
    again: bool
    """an earlier group has covered other keys of these query tiles"""
    runs: tuple[Run, ...] | None
    distances: Int[Tensor, "tile lanes"] | None
    """query position - key position, where positions have holes; then the group is one query tile"""


@dataclass(frozen=True)
class Layout:
    """The tiles of a pattern on given positions."""

    query_tile: int
    key_tile: int
    groups: tuple[Group, ...]
    whole: bool = False
    """one tile holds everything"""
    covered: bool = False
    """every query tile has a key tile"""
    nbytes: int = 0
    """of the masks"""

    @property
    def computed(self) -> int:
        """Scores that are computed, masked ones included."""
        tiles = sum(group.slots * step.count for group in self.groups for step in group.steps)
        return tiles * self.query_tile * self.key_tile


class Plan(NamedTuple):
    """The layout of all heads, or of each head; heads with the same pattern share one."""

    layouts: tuple[Layout, ...]

    def of(self, head: int) -> Layout:
        return self.layouts[head if len(self.layouts) > 1 else 0]

    @property
    def covered(self) -> bool:
        """Whether every query tile of every head has a key tile."""
        return all(layout.covered for layout in self.layouts)

    @property
    def nbytes(self) -> int:
        return sum({id(layout): layout.nbytes for layout in self.layouts}.values())


class Places(NamedTuple):
    """Where a call's queries or keys are: `length` consecutive positions from `start`, or explicit ones."""

    start: int
    length: int
    explicit: Tensor | None = None

    def key(self) -> tuple[int, int] | bytes:
        """Equal for equal positions."""
        if self.explicit is None:
            return self.start, self.length
        return hashlib.sha256(self.positions().numpy().tobytes()).digest()

    def positions(self) -> Tensor:
        if self.explicit is None:
            return torch.arange(self.start, self.start + self.length)
        return self.explicit.cpu().long()


_cache: OrderedDict[tuple[object, ...], Plan] = OrderedDict()
_lock = threading.Lock()


def find_plan(
    rule: str, queries: Places, keys: Places, *, whole: int, biased: bool, device: torch.device, dtype: torch.dtype
) -> Plan:
    """How the pattern named `rule` is laid out, from the cache where possible.

    Args:
        rule: the text of a living pattern.
        queries, keys: positions.
        whole: up to this many queries and keys, one tile holds everything.
        biased: groups must also agree on distances.
        device, dtype: of the masks.
    """
    known = (rule, queries.key(), keys.key(), whole, biased, device, dtype)
    with _lock:
        if known in _cache:
            _cache.move_to_end(known)
            return _cache[known]
    pattern, i, j = resolve(rule), queries.positions(), keys.positions()
    if max(queries.length, keys.length) <= whole:
        found = Plan((one_tile(pattern, i, j, biased, device, dtype),))
    else:
        made: dict[Pattern, Layout] = {}
        for head in range(pattern.heads or 1):
            own = pattern.of(head)
            if own not in made:
                made[own] = make_layout(own, i, j, (TILE, TILE), biased, device, dtype)
        found = Plan(tuple(made[pattern.of(head)] for head in range(pattern.heads or 1)))
    with _lock:
        _cache[known] = found
        while len(_cache) > 1 and (len(_cache) > CACHED or sum(plan.nbytes for plan in _cache.values()) > CACHED_BYTES):
            _cache.popitem(last=False)
    return found


def one_tile(
    pattern: Pattern,
    queries: Int[Tensor, " queries"],
    keys: Int[Tensor, " keys"],
    biased: bool,
    device: torch.device,
    dtype: torch.dtype,
) -> Layout:
    """The layout of one tile that holds everything; its mask may have a head axis."""
    if not len(queries) or not len(keys):
        return Layout(TILE, TILE, ())
    sizes, mask = (len(queries), len(keys)), pattern.mask(queries, keys)
    if not mask.any():
        return Layout(*sizes, ())
    hidden = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, float("-inf")).to(device)
    at = torch.zeros(1, dtype=torch.long)
    runs, distances = _distances(queries[None], keys[None], at[0], at) if biased else (None, None)
    group = Group(
        slots=1,
        masks=() if mask.all() else ((0, hidden),),
        steps=_steps(at, at[None], sizes[0] * sizes[1], device),
        again=False,
        runs=runs,
        distances=None if distances is None else distances.to(device),
    )
    return Layout(*sizes, (group,), whole=True, covered=True, nbytes=hidden.nbytes)


def make_layout(
    pattern: Pattern,
    queries: Int[Tensor, " queries"],
    keys: Int[Tensor, " keys"],
    sizes: tuple[int, int],
    biased: bool,
    device: torch.device,
    dtype: torch.dtype,
) -> Layout:
    """Lay a pattern out on positions."""
    query_tile, key_tile = sizes
    if not len(queries) or not len(keys):
        return Layout(TILE, TILE, ())
    q, k = _tiled(queries, query_tile), _tiled(keys, key_tile)
    row, column, full = _touched(pattern, _spans(q), _spans(k))
    row, column, kind, masks = _masks(pattern, q, k, row, column, full, (len(queries), len(keys)))
    groups = _group(q, k, row, column, kind, biased)
    hidden = [(~mask).to(device) for mask in masks]
    if len(hidden) <= FEW_MASKS:
        hidden = [torch.zeros(x.shape, dtype=dtype, device=device).masked_fill_(x, float("-inf")) for x in hidden]
    made = []
    for (piece, kinds, *_), rows in sorted(groups.items(), key=lambda item: item[0][0]):
        tiles = torch.stack([column[start : start + len(kinds)] for _, start in rows])
        at = torch.tensor([r for r, _ in rows])
        runs, distances = _distances(q, k, at[0], tiles[0]) if biased else (None, None)
        made.append(
            Group(
                slots=len(kinds),
                masks=tuple((slot, hidden[x - 1]) for slot, x in enumerate(kinds) if x),
                steps=_steps(at, tiles, query_tile * key_tile, device),
                again=piece > 0,
                runs=runs,
                distances=None if distances is None else distances.to(device),
            )
        )
    return Layout(
        query_tile,
        key_tile,
        tuple(made),
        covered=len(row.unique()) == len(q),
        nbytes=sum(x.nbytes for x in hidden),
    )


def _tiled(positions: Tensor, size: int) -> Int[Tensor, "tiles size"]:
    """Positions by tile; the last tile goes on past the end (its extra keys are masked, its extra queries dropped)."""
    extra = positions[-1] + 1 + torch.arange(-len(positions) % size)
    return torch.cat([positions, extra]).view(-1, size)


def _spans(tiles: Tensor) -> Span:
    gaps = tiles.diff(dim=1)
    if not gaps.shape[1]:
        return Span(tiles[:, 0], tiles[:, 0], torch.zeros(len(tiles), dtype=torch.long))
    even = (gaps == gaps[:, :1]).all(1) & (gaps[:, 0] > 0)
    return Span(tiles.amin(1), tiles.amax(1), torch.where(even, gaps[:, 0], 1))


def _coarser(span: Span) -> Span:
    pad = -len(span.lo) % COARSE
    lo, hi, step = (
        torch.cat([x, x[-1:].expand(pad)]).view(-1, COARSE) for x in (span.lo, span.hi, span.step.clamp_min(1))
    )
    even = (step == step[:, :1]).all(1) & ((lo - lo[:, :1]) % step[:, :1] == 0).all(1)
    return Span(lo.amin(1), hi.amax(1), torch.where(even, step[:, 0], 1))


def _touched(pattern: Pattern, q: Span, k: Span) -> tuple[Tensor, Tensor, Tensor]:
    """(row, column, full) of every tile that may hold a pair, in order."""
    rows, columns = len(q.lo), len(k.lo)
    if max(rows, columns) <= 2 * COARSE:
        truth = pattern.over(_at(q, (slice(None), None)), _at(k, (None, slice(None))))
        row, column = truth.some.expand(rows, columns).nonzero(as_tuple=True)
        return row, column, truth.every.expand(rows, columns)[row, column]
    outer_row, outer_column, _ = _touched(pattern, _coarser(q), _coarser(k))
    inner = torch.arange(COARSE)
    found = []
    for r, c in zip(outer_row.split(4096), outer_column.split(4096), strict=True):
        row = (r[:, None, None] * COARSE + inner[:, None]).expand(-1, COARSE, COARSE)
        column = (c[:, None, None] * COARSE + inner).expand(-1, COARSE, COARSE)
        inside = (row < rows) & (column < columns)
        row, column = row[inside], column[inside]
        truth = pattern.over(_at(q, row), _at(k, column))
        some = truth.some.expand(row.shape)
        found.append((row[some], column[some], truth.every.expand(row.shape)[some]))
    row, column, full = (torch.cat(x) for x in zip(*found, strict=True)) if found else torch.empty(3, 0).long()
    order = (row * columns + column).argsort()
    return row[order], column[order], full[order].bool()


def _at(span: Span, where: Tensor | tuple[slice | None, slice | None]) -> Span:
    return Span(span.lo[where], span.hi[where], span.step[where])


def _masks(
    pattern: Pattern, q: Tensor, k: Tensor, row: Tensor, column: Tensor, full: Tensor, counts: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, list[Bool[Tensor, "tile tile"]]]:
    """Tiles without the empty ones, the kind of each (0: full, x: masks[x - 1]), and the distinct masks."""
    (queries, keys), (tile, lanes) = counts, (q.shape[1], k.shape[1])
    past_end = torch.arange(len(k) * lanes).view(-1, lanes) >= keys
    short = past_end.any(1)[column]
    full = full & ~short
    partial = (~full).nonzero().flatten()
    r, c = row[partial], column[partial]
    # The mask of tiles of consecutive positions depends on their offset alone, unless the pattern is anchored.
    alike = _consecutive(q)[r] & _consecutive(k)[c] & ~short[partial] & ((r + 1) * tile <= queries)
    identity = torch.where(alike & (not pattern.anchored), q[r, 0] - k[c, 0], (1 << 50) + torch.arange(len(r)))
    _, inverse = identity.unique(return_inverse=True)
    count = int(inverse.max()) + 1 if len(inverse) else 0
    example = torch.zeros(count, dtype=torch.long).scatter_(0, inverse, torch.arange(len(r)))
    # A rule may look up tables, which have nothing past the end.
    q, k = q.clamp(max=q.flatten()[:queries].max()), k.clamp(max=k.flatten()[:keys].max())
    known: dict[bytes, int] = {}
    masks: list[Tensor] = []
    kinds: list[int] = []
    for x in example.split(max(1, PAIRS // (tile * lanes))):
        mask = pattern.mask(q[r[x]], k[c[x]]) & ~past_end[c[x]][:, None]
        packed = np.packbits(mask.flatten(1).numpy(), axis=1)
        none, every = mask.flatten(1).any(1).logical_not().tolist(), mask.flatten(1).all(1).tolist()
        for at, bits in enumerate(packed):
            if none[at] or every[at]:
                kinds.append(-1 if none[at] else 0)
                continue
            seen = known.setdefault(bits.tobytes(), len(masks) + 1)
            if seen > len(masks):
                masks.append(mask[at])
            kinds.append(seen)
    kind = torch.zeros(len(row), dtype=torch.long)
    kind[partial] = torch.tensor(kinds, dtype=torch.long)[inverse]
    kept = kind >= 0
    return row[kept], column[kept], kind[kept], masks


def _consecutive(tiles: Tensor) -> Bool[Tensor, " tiles"]:
    return (tiles.diff(dim=1) == 1).all(1)


def _group(
    q: Tensor, k: Tensor, row: Tensor, column: Tensor, kind: Tensor, biased: bool
) -> dict[tuple, list[tuple[int, int]]]:
    """Arrangement -> (query tile, where its tiles start in `column`) of the query tiles that have it."""
    widest = max(1, BUDGET // (q.shape[1] * k.shape[1]))
    kinds, bounds = kind.tolist(), torch.bincount(row, minlength=len(q)).cumsum(0).tolist()
    offsets = (q[row, 0] - k[column, 0]).tolist() if biased else []
    even = (_consecutive(q)[row] & _consecutive(k)[column]).tolist() if biased else []
    groups: dict[tuple, list[tuple[int, int]]] = {}
    for r, stop in enumerate(bounds):
        for piece, start in enumerate(range(bounds[r - 1] if r else 0, stop, widest)):
            cut = slice(start, min(start + widest, stop))
            key: tuple = (piece, tuple(kinds[cut]))
            if biased:
                key += (tuple(offsets[cut]), -1 if all(even[cut]) else r)
            groups.setdefault(key, []).append((r, start))
    return groups


def _distances(q: Tensor, k: Tensor, row: Tensor, tiles: Tensor) -> tuple[tuple[Run, ...] | None, Tensor | None]:
    """Distances of a group: by runs of consecutive keys, or one by one where positions have holes."""
    if not bool(_consecutive(q[row][None]).all() & _consecutive(k[tiles]).all()):
        return None, q[row][:, None] - k[tiles].flatten()
    starts, size, origin = k[tiles, 0].tolist(), k.shape[1], int(q[row, 0])
    runs: list[Run] = []
    for slot, start in enumerate(starts):
        if runs and start == starts[slot - 1] + size:
            runs[-1] = runs[-1]._replace(stop=(slot + 1) * size)
        else:
            runs.append(Run(slot * size, (slot + 1) * size, origin - start))
    return tuple(runs), None


def _steps(rows: Tensor, tiles: Tensor, pairs: int, device: torch.device) -> tuple[Step, ...]:
    slots = tiles.shape[1]
    run = bool((tiles.diff(dim=1) == 1).all())
    most = max(1, BUDGET // (pairs * slots))
    if run and most < 4:
        most = 1  # a view of consecutive keys is worth more than a batch of gathered ones
    made = []
    for a in range(0, len(rows), most):
        r, t = rows[a : a + most], tiles[a : a + most]
        next_to = bool((r.diff() == 1).all())
        gaps = t[:, 0].diff()
        key, advance = None, 0
        if run and (len(r) == 1 or (bool((gaps == gaps[0]).all()) and int(gaps[0]) in (0, 1))):
            key, advance = int(t[0, 0]), int(gaps[0]) if len(r) > 1 else 0
        made.append(Step(len(r), int(r[0]) if next_to else None, r.to(device), key, advance, t.flatten().to(device)))
    return tuple(made)
