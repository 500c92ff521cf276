"""From a pattern to the tiles that hold its pairs, without any tensor of queries x keys.

Positions are cut into tiles. Interval arithmetic says which pairs of tiles are empty, full or partial, first for
squares of 16 x 16 tiles and then inside those that are not empty, so the work follows the pairs that are kept. Query
tiles that see the same arrangement of masks form a group, which one batched product serves; where few see the same
masks, those whose masks stand in the same slots.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.engines.tiles.operands import Group, Layout, Run, Step
from regard.engines.tiles.parts import Lanes
from regard.patterns import Pattern
from regard.patterns.intervals import Span

BUDGET = 1 << 18
"""Scores in one buffer, about 1 MiB in float32: a core's second-level cache."""
ROOM = {"cpu": 1}
"""Times these budgets that a device takes at once: on a GPU each buffer is a handful of kernels to start."""
BUDGET_APART = 1 << 15
"""The same where positions are sorted by residue: more classes at once are no faster, and take memory."""
BUDGET_MIXED = 1 << 16
"""The same where masks differ by query tile, whose masks take as much again."""
MASKED_PAIRS = 1 << 16
"""Pairs whose exact mask is computed at once."""
COARSE = 16
"""Tiles in a side of the squares that are looked at first."""
ARRANGEMENT_TILES = 4
"""Arrangements that fewer query tiles see, on the average, are served together."""
ADDED_MASKS = 256
"""Up to this many distinct masks are kept as numbers to add, which is faster; more as booleans, which is smaller."""


def room(device: torch.device) -> int:
    """Times the budgets of scores in a buffer that a device takes at once."""
    return ROOM.get(device.type, 128)


def make_layout(
    pattern: Pattern, queries: Lanes, keys: Lanes, biased: bool, device: torch.device, dtype: torch.dtype
) -> Layout:
    """Lay a pattern out on positions.

    Args:
        pattern: of one head.
        queries, keys: positions in tiles.
        biased: groups must also agree on distances.
        device, dtype: of the masks.
    """
    sizes, step = (queries.positions.shape[2], keys.positions.shape[2]), keys.step
    place, row, column, full = touched(pattern, queries, keys)
    row, column = place * queries.positions.shape[1] + row, place * keys.positions.shape[1] + column
    order = (row * keys.positions[..., 0].numel() + column).argsort()
    row, column, full = row[order], column[order], full[order]
    q, k = _Tiles.of(queries), _Tiles.of(keys)
    row, column, kind, masks = _masks(pattern, q, k, row, column, full, step)
    widest = max(1, BUDGET * room(device) // math.prod(sizes))
    groups = _group(q.positions, k.positions, row, column, kind, step if biased else None, widest)
    hidden = [(~mask).to(device) for mask in masks]
    if len(hidden) <= ADDED_MASKS:
        hidden = [torch.zeros(x.shape, dtype=dtype, device=device).masked_fill_(x, float("-inf")) for x in hidden]
    tables: dict[tuple[int, ...], Tensor] = {}
    made, budget = [], (BUDGET if step == 1 else BUDGET_APART) * room(device)
    for (piece, arrangement, *_), rows in sorted(groups.items(), key=lambda item: item[0][0]):
        slots = torch.arange(len(arrangement))
        tiles, kinds = (x[torch.tensor([start for _, start in rows])[:, None] + slots] for x in (column, kind))
        at = torch.tensor([r for r, _ in rows])
        runs, distances = distances_of(q.positions, k.positions, at[0], tiles[0], step) if biased else (None, None)
        partial = [slot for slot, x in enumerate(arrangement) if x]
        used, which = kinds[:, partial].unique(return_inverse=True)
        present, alike = tuple(used.tolist()), bool((which == which[0]).all())
        if not alike and present not in tables:
            tables[present] = torch.stack([hidden[x - 1] for x in present])
        most = budget if alike else min(budget, BUDGET_MIXED * room(device))
        seen = [hidden[present[x] - 1] for x in which[0].tolist()] if alike else [tables[present]] * len(partial)
        made.append(
            Group(
                slots=len(slots),
                masks=tuple(zip(partial, seen, strict=True)),
                steps=steps_of(at, tiles, sizes[0] * sizes[1], device, most, None if alike else which),
                again=piece > 0,
                runs=runs,
                distances=None if distances is None else distances.to(device),
            )
        )
    moved = queries.moved(device)
    chosen = None if keys.indices is None else keys.indices.flatten().to(device)
    indices = [x for group in made for one in group.steps for x in (one.rows, one.keys, one.masks)]
    return Layout(
        sizes,
        tuple(made),
        step=step,
        queries=moved[0],
        padding=moved[1],
        back=moved[2],
        keys=chosen,
        nbytes=sum(x.nbytes for x in (*hidden, *tables.values(), *indices, *moved, chosen) if x is not None),
    )


class _Tiles(NamedTuple):
    """The tiles of all classes, one after another."""

    positions: Int[Tensor, "tiles tile"]
    real: Bool[Tensor, "tiles tile"]
    even: Bool[Tensor, " tiles"]
    """whether the positions are one step apart"""

    @classmethod
    def of(cls, lanes: Lanes) -> "_Tiles":
        positions = lanes.positions.flatten(0, 1)
        return cls(positions, lanes.real.flatten(0, 1), _even(positions, lanes.step))


def _spans(tiles: Int[Tensor, "classes tiles tile"]) -> Span:
    gaps = tiles.diff(dim=-1)
    if not gaps.shape[-1]:
        return Span(tiles[..., 0], tiles[..., 0], torch.zeros(tiles.shape[:-1], dtype=torch.long))
    even = (gaps == gaps[..., :1]).all(-1) & (gaps[..., 0] > 0)
    return Span(tiles.amin(-1), tiles.amax(-1), torch.where(even, gaps[..., 0], 1))


def _coarser(span: Span) -> Span:
    pad = -span.lo.shape[1] % COARSE
    lo, hi, step = (
        torch.cat([x, x[:, -1:].expand(-1, pad)], 1).unflatten(1, (-1, COARSE))
        for x in (span.lo, span.hi, span.step.clamp_min(1))
    )
    even = (step == step[..., :1]).all(-1) & ((lo - lo[..., :1]) % step[..., :1] == 0).all(-1)
    return Span(lo.amin(-1), hi.amax(-1), torch.where(even, step[..., 0], 1))


def touched(pattern: Pattern, queries: Lanes, keys: Lanes) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(class, row, column, full) of every tile that may hold a pair; the padding of a tile counts."""
    return _touched(pattern, _spans(queries.positions), _spans(keys.positions))


def _touched(pattern: Pattern, q: Span, k: Span) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(class, row, column, full) of every tile that may hold a pair."""
    (classes, rows), columns = q.lo.shape, k.lo.shape[1]
    if max(rows, columns) <= 2 * COARSE:
        truth = pattern.over(_at(q, (..., slice(None), None)), _at(k, (..., None, slice(None))))
        may, must = truth.may.expand(classes, rows, columns), truth.must.expand(classes, rows, columns)
        a, r, c = may.nonzero(as_tuple=True)
        return a, r, c, must[a, r, c]
    outer = _touched(pattern, _coarser(q), _coarser(k))[:3]
    inner = torch.arange(COARSE)
    tiles = []
    for a, r, c in zip(*(x.split(4096) for x in outer), strict=True):
        row = (r[:, None, None] * COARSE + inner[:, None]).expand(-1, COARSE, COARSE)
        column = (c[:, None, None] * COARSE + inner).expand(-1, COARSE, COARSE)
        inside = (row < rows) & (column < columns)
        at = (a[:, None, None].expand(-1, COARSE, COARSE)[inside], row[inside], column[inside])
        truth = pattern.over(_at(q, (at[0], at[1])), _at(k, (at[0], at[2])))
        may = truth.may.expand(at[0].shape)
        tiles.append((*(x[may] for x in at), truth.must.expand(at[0].shape)[may]))
    empty = torch.empty(0, dtype=torch.long)
    a, r, c, full = (torch.cat(x) for x in zip(*tiles, strict=True)) if tiles else (empty, empty, empty, empty.bool())
    return a, r, c, full


def _at(span: Span, where: tuple) -> Span:
    return Span(span.lo[where], span.hi[where], span.step[where])


def _masks(
    pattern: Pattern, q: _Tiles, k: _Tiles, row: Tensor, column: Tensor, full: Tensor, step: int
) -> tuple[Tensor, Tensor, Tensor, list[Bool[Tensor, "tile tile"]]]:
    """Tiles without the empty ones, the kind of each (0: full, x: masks[x - 1]), and the distinct masks."""
    alive = q.real.any(1)[row] & k.real.any(1)[column]
    row, column, full = row[alive], column[alive], full[alive]
    short = ~k.real.all(1)[column]
    full = full & ~short
    partial = (~full).nonzero().flatten()
    r, c = row[partial], column[partial]
    # The mask of two tiles of evenly spaced positions depends on their offset alone, unless the pattern is anchored.
    alike = q.even[r] & k.even[c] & ~short[partial] & q.real.all(1)[r]
    offset = q.positions[r, 0] - k.positions[c, 0]
    identity = torch.where(alike & (not pattern.anchored), offset, (1 << 50) + torch.arange(len(r)))
    _, inverse = identity.unique(return_inverse=True)
    count = int(inverse.max()) + 1 if len(inverse) else 0
    example = torch.zeros(count, dtype=torch.long).scatter_(0, inverse, torch.arange(len(r)))
    # A rule may look up tables, which have nothing past the end.
    i, j = (x.positions.clamp(max=x.positions[x.real].max()) for x in (q, k))
    known: dict[bytes, int] = {}
    masks: list[Tensor] = []
    kinds: list[int] = []
    for x in example.split(max(1, MASKED_PAIRS // (i.shape[1] * j.shape[1]))):
        mask = pattern.mask(i[r[x]], j[c[x]]) & k.real[c[x]][:, None]
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


def _even(tiles: Tensor, step: int) -> Bool[Tensor, " tiles"]:
    return (tiles.diff(dim=1) == step).all(1)


def _group(
    q: Tensor, k: Tensor, row: Tensor, column: Tensor, kind: Tensor, step: int | None, widest: int
) -> dict[tuple, list[tuple[int, int]]]:
    """Arrangement of up to `widest` tiles -> (query tile, where its tiles start in `column`) of those that have it."""
    kinds, bounds = kind.tolist(), torch.bincount(row, minlength=len(q)).cumsum(0).tolist()
    offsets = (q[row, 0] - k[column, 0]).tolist() if step else []
    even = (_even(q, step)[row] & _even(k, step)[column]).tolist() if step else []
    groups: dict[tuple, list[tuple[int, int]]] = {}
    for r, stop in enumerate(bounds):
        for piece, start in enumerate(range(bounds[r - 1] if r else 0, stop, widest)):
            cut = slice(start, min(start + widest, stop))
            key: tuple = (piece, tuple(kinds[cut]))
            if step:
                key += (tuple(offsets[cut]), -1 if all(even[cut]) else r)
            groups.setdefault(key, []).append((r, start))
    return groups if step else _together(groups)


def _together(groups: dict[tuple, list[tuple[int, int]]]) -> dict[tuple, list[tuple[int, int]]]:
    """Arrangements with masks in the same slots as one, where few query tiles have each."""
    by_place: dict[tuple, list[tuple]] = {}
    for key in groups:
        by_place.setdefault((key[0], tuple(bool(x) for x in key[1])), []).append(key)
    together: dict[tuple, list[tuple[int, int]]] = {}
    for place, keys in by_place.items():
        rows = sorted(row for key in keys for row in groups[key])
        if len(keys) > 1 and len(rows) < ARRANGEMENT_TILES * len(keys):
            together[place] = rows
        else:
            together |= {key: groups[key] for key in keys}
    return together


def distances_of(
    q: Tensor, k: Tensor, row: Tensor, tiles: Tensor, step: int
) -> tuple[tuple[Run, ...] | None, Tensor | None]:
    """Distances of a group: by runs of evenly spaced keys, or one by one where positions have holes."""
    if not bool(_even(q[row][None], step).all() & _even(k[tiles], step).all()):
        return None, (q[row][:, None] - k[tiles].flatten()) // step
    starts, size, origin = k[tiles, 0].tolist(), k.shape[1], int(q[row, 0])
    runs: list[Run] = []
    for slot, start in enumerate(starts):
        if runs and start == starts[slot - 1] + size * step:
            runs[-1] = runs[-1]._replace(stop=(slot + 1) * size)
        else:
            runs.append(Run(slot * size, (slot + 1) * size, (origin - start) // step))
    return tuple(runs), None


def steps_of(
    rows: Int[Tensor, " rows"],
    tiles: Int[Tensor, "rows slots"],
    pairs: int,
    device: torch.device,
    budget: int,
    masks: Int[Tensor, "rows partial"] | None = None,
) -> tuple[Step, ...]:
    """A group cut into products whose scores fit a buffer.

    Args:
        rows, tiles: query tiles and their key tiles.
        pairs: in one tile.
        device: of the indices.
        budget: scores in a buffer.
        masks: which ones each query tile has, where they differ.
    """
    slots = tiles.shape[1]
    run = bool((tiles.diff(dim=1) == 1).all())
    most = max(1, budget // (pairs * slots))
    if run and most < 4:
        most = 1  # a view of consecutive keys is worth more than a batch of gathered ones
    made = []
    for piece in _pieces(tiles[:, 0].tolist(), most) if run else torch.arange(len(rows)).split(most):
        r, t = rows[piece], tiles[piece]
        gap, advance = _constant(r.diff()), _constant(t[:, 0].diff()) if run else None
        made.append(
            Step(
                len(r),
                row=int(r[0]) if gap else None,
                gap=gap or 0,
                rows=r.to(device),
                key=None if advance is None else int(t[0, 0]),
                advance=advance or 0,
                keys=t.flatten().to(device),
                masks=None if masks is None else masks[piece].to(device),
            )
        )
    return tuple(made)


def _pieces(starts: list[int], most: int) -> list[slice]:
    """Up to `most` runs of keys at a time whose starts are evenly spaced, unless that would be hardly two at a time."""
    cuts = [0]
    for at in range(1, len(starts)):
        begin = cuts[-1]
        uneven = at - begin > 1 and starts[at] - starts[at - 1] != starts[begin + 1] - starts[begin]
        if uneven or at - begin == most or starts[at] < starts[at - 1]:
            cuts.append(at)
    if 2 * len(cuts) > len(starts) + 1:
        cuts = list(range(0, len(starts), most))
    return [slice(a, b) for a, b in zip(cuts, [*cuts[1:], len(starts)], strict=True)]


def _constant(gaps: Int[Tensor, " gaps"]) -> int | None:
    """The gap where all gaps are equal and not negative; a single tile has gap 1."""
    if not len(gaps):
        return 1
    return int(gaps[0]) if bool((gaps == gaps[0]).all()) and int(gaps[0]) >= 0 else None
