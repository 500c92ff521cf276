"""A pattern and the tiles that compute it: every pair once, and the keys that a later query may see."""

import torch
from jaxtyping import Int
from torch import Tensor

from regard.attention.sparse._base import Sparse
from regard.attention.tiles._layout import Layout
from regard.attention.tiles._plan import Places, find_plan
from regard.masks import Pattern
from regard.testing.inputs import LENGTH, LONG, Subject
from regard.testing.registry import check, require


@check()
def partition(subject: Subject) -> None:
    """The tiles of a mechanism's pattern hold every pair that the definition allows once, and no other pair."""
    for causal in subject.modes:
        mechanism = subject.build(causal)
        if not isinstance(mechanism, Sparse):
            return
        for length in (LENGTH, LONG, 3 * LONG):
            positions = torch.arange(length)
            allowed = mechanism.allowed(positions[:, None], positions[None])
            allowed = allowed & (positions <= positions[:, None]) if causal else allowed
            held = times_held(mechanism.pattern, length, mechanism.heads.count)
            wrong = (held != allowed.to(held.dtype)).nonzero()
            require(
                not len(wrong),
                f"{len(wrong)} pairs of {length} positions are not held once; the first is (head, query, key) = "
                f"{wrong[0].tolist() if len(wrong) else None}, {causal=}",
            )


@check()
def future_keys(subject: Subject) -> None:
    """The state keeps the keys that the definition shows to some later query, and no key that it shows to none."""
    mechanism = subject.build(True) if subject.info.supports.causal else None
    if not isinstance(mechanism, Sparse) or not subject.info.supports.state:
        return
    positions, edge = torch.arange(LONG), LONG // 2
    allowed = mechanism.allowed(positions[:, None], positions[None])
    allowed = allowed.view(-1, LONG, LONG).any(0) & (positions <= positions[:, None])
    for first in (1, 4, 5, LENGTH, 16, edge):
        wanted = allowed[first:, :first].any(0)
        seen = mechanism.kept(first)[:first]
        late = (seen != wanted).nonzero().flatten().tolist()
        require(not late, f"after {first} keys, keys {late} are kept though hidden, or dropped though seen")


def times_held(pattern: Pattern, length: int, heads: int) -> Int[Tensor, "heads queries keys"]:
    """How often the tiles of a pattern hold each pair of a sequence, head by head."""
    places = Places(0, length)
    like = {"device": torch.device("cpu"), "dtype": torch.float32}
    plan = find_plan(pattern.text, places, places, whole=0, biased=False, **like)
    held = torch.zeros(heads, length, length, dtype=torch.long)
    for head in range(heads):
        for layout in plan.of(head):
            _count(layout, held[head])
    return held


def _count(layout: Layout, held: Int[Tensor, "queries keys"]) -> None:
    queries, keys = held.shape
    tile, size = layout.sizes
    query = _lanes(layout.queries, layout.padding, queries, tile)
    key = _lanes(layout.keys, None, keys, size)
    for group in layout.groups:
        seen = torch.ones(tile, group.slots * size, dtype=torch.bool)
        for slot, mask in group.masks:
            hidden = mask if mask.dtype == torch.bool else mask.isneginf()
            seen[:, slot * size : (slot + 1) * size] = ~hidden
        for step in group.steps:
            for row, tiles in zip(step.rows.tolist(), step.keys.view(step.count, -1), strict=True):
                lanes, columns = query[row], key[tiles].flatten()
                inside = (seen & (lanes >= 0)[:, None] & (columns >= 0)).nonzero()
                pairs = lanes[inside[:, 0]], columns[inside[:, 1]]
                held.index_put_(pairs, torch.ones(len(inside), dtype=torch.long), accumulate=True)


def _lanes(order: Tensor | None, padding: Tensor | None, length: int, tile: int) -> Int[Tensor, "tiles tile"]:
    """The position of each lane, -1 for padding."""
    lanes = torch.arange(length + -length % tile) if order is None else order.clone()
    lanes[lanes >= length] = -1
    if padding is not None:
        lanes[padding] = -1
    return lanes.view(-1, tile)
