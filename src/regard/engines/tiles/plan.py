"""How a call is laid out: the parts of each head, from a cache where the pattern and the positions are known."""

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from regard.engines.tiles.layout import BUDGET, distances_of, make_layout, room, steps_of
from regard.engines.tiles.operands import Group, Layout, Share
from regard.engines.tiles.parts import TILE, arranged, natural, split
from regard.patterns import Pattern
from regard.patterns.pattern import resolve

CACHED, CACHED_BYTES = 64, 1 << 28
"""Plans kept, and their bytes; the least recently used goes first."""


class Plan(NamedTuple):
    """The parts of all heads, or of each head; heads with the same pattern share them."""

    parts: tuple[tuple[Layout, ...], ...]

    def of(self, head: int) -> tuple[Layout, ...]:
        return self.parts[head if len(self.parts) > 1 else 0]

    @property
    def whole(self) -> bool:
        """Whether one tile holds everything."""
        return any(layout.whole for parts in self.parts for layout in parts)

    @property
    def tiles(self) -> tuple[int, int]:
        """Sizes of the query and key tiles that cut the operands in their natural order."""
        return self.parts[0][0].sizes if self.whole else (TILE, TILE)

    def shares(self, batch: int, heads: int, kv_heads: int, device: torch.device) -> Iterator[Share]:
        """All parts of all heads of all batch rows, as many together as fill the buffers."""
        group, together, rows = heads // kv_heads, 1, 1
        if self.whole:
            most = max(1, BUDGET * room(device) // math.prod(self.tiles))
            together = max((h for h in range(group, heads + 1, group) if heads % h == 0 and h <= most), default=1)
            rows = max(1, most // heads) if together == heads else 1
        for b in range(0, batch, rows):
            for h in range(0, heads, together):
                kv = slice(h // group, (h + together - 1) // group + 1)
                for at, layout in enumerate(self.of(h)):
                    yield Share(layout, at > 0, slice(b, min(b + rows, batch)), slice(h, h + together), kv)

    @property
    def nbytes(self) -> int:
        return sum({id(layout): layout.nbytes for parts in self.parts for layout in parts}.values())


class Positions(NamedTuple):
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
    rule: str,
    queries: Positions,
    keys: Positions,
    *,
    whole: int,
    biased: bool,
    device: torch.device,
    dtype: torch.dtype,
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
        plan = Plan((_one_tile(pattern, i, j, biased, device, dtype),))
    else:
        heads = [pattern.of(head) for head in range(pattern.heads or 1)]
        made = {each: _in_parts(each, i, j, biased, device, dtype) for each in dict.fromkeys(heads)}
        plan = Plan(tuple(made[each] for each in heads))
    with _lock:
        _cache[known] = plan
        while len(_cache) > 1 and (len(_cache) > CACHED or sum(each.nbytes for each in _cache.values()) > CACHED_BYTES):
            _cache.popitem(last=False)
    return plan


def _in_parts(
    pattern: Pattern,
    queries: Int[Tensor, " queries"],
    keys: Int[Tensor, " keys"],
    biased: bool,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Layout, ...]:
    if not len(queries) or not len(keys):
        return ()
    made = []
    for part, order in split(pattern, queries, keys):
        q = natural(queries) if order is None else arranged(queries, order, keys=False)
        k = natural(keys) if order is None else arranged(keys, order, keys=True)
        if q is not None and k is not None:
            made.append(make_layout(part, q, k, biased, device, dtype))
    return tuple(layout for layout in made if layout.groups)


def _one_tile(
    pattern: Pattern,
    queries: Int[Tensor, " queries"],
    keys: Int[Tensor, " keys"],
    biased: bool,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Layout, ...]:
    """One tile that holds everything; its mask may have a head axis."""
    if not len(queries) or not len(keys):
        return ()
    sizes, mask = (len(queries), len(keys)), pattern.mask(queries, keys)
    if not mask.any():
        return ()
    hidden = torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, float("-inf")).to(device)
    at = torch.zeros(1, dtype=torch.long)
    runs, distances = distances_of(queries[None], keys[None], at[0], at, 1) if biased else (None, None)
    group = Group(
        slots=1,
        masks=() if mask.all() else ((0, hidden),),
        steps=steps_of(at, at[None], sizes[0] * sizes[1], device, BUDGET * room(device)),
        again=False,
        runs=runs,
        distances=None if distances is None else distances.to(device),
    )
    return (Layout(sizes, (group,), whole=True, nbytes=hidden.nbytes),)
