"""A pattern and the tiles that compute it: every pair once, and the keys that a later query may see."""

import torch
from jaxtyping import Int
from torch import Tensor

from regard.attention.sparse import PatternSoftmax
from regard.engines.tiles.layout import Layout
from regard.engines.tiles.plan import Positions, find_plan
from regard.patterns import Pattern
from regard.testing.compare import require
from regard.testing.inputs import LENGTH, LONG, Subject, here
from regard.testing.registry import check


@check(kind=PatternSoftmax, elsewhere="reference")
def partition(subject: Subject) -> None:
    """The tiles of a pattern hold every pair that it allows once, and no other pair."""
    for causal in subject.modes:
        mechanism = subject.build(causal)
        assert isinstance(mechanism, PatternSoftmax)
        for length in (LENGTH, LONG, 3 * LONG):
            positions = torch.arange(length, device=here())
            held = times_held(mechanism.pattern, length, mechanism.heads.count)
            wrong = (held != mechanism.pattern.mask(positions, positions).to(held.dtype)).nonzero().tolist()
            require(
                not wrong,
                f"{len(wrong)} of the (head, query, key) of {length} positions, such as {wrong[:1]}, are held in vain, "
                f"not at all, or twice, {causal=}",
            )


def times_held(pattern: Pattern, length: int, heads: int) -> Int[Tensor, "heads queries keys"]:
    """How often the tiles of a pattern hold each pair of a sequence, head by head."""
    positions = Positions(0, length)
    like = {"device": here(), "dtype": torch.float32}
    plan = find_plan(pattern.text, positions, positions, whole=0, biased=False, **like)
    held = torch.zeros(heads, length, length, dtype=torch.long, device=here())
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
        for step in group.steps:
            seen = torch.ones(step.count, tile, group.slots * size, dtype=torch.bool, device=here())
            for slot, mask in group.hidden(step):
                hidden = mask if mask.dtype == torch.bool else mask.isneginf()
                seen[:, :, slot * size : (slot + 1) * size] = ~hidden
            for row, tiles, visible in zip(step.rows.tolist(), step.keys.view(step.count, -1), seen, strict=True):
                lanes, columns = query[row], key[tiles].flatten()
                inside = (visible & (lanes >= 0)[:, None] & (columns >= 0)).nonzero()
                pairs = lanes[inside[:, 0]], columns[inside[:, 1]]
                held.index_put_(pairs, torch.ones(len(inside), dtype=torch.long, device=here()), accumulate=True)


def _lanes(order: Tensor | None, padding: Tensor | None, length: int, tile: int) -> Int[Tensor, "tiles tile"]:
    """The position of each lane, -1 for padding."""
    lanes = torch.arange(length + -length % tile, device=here()) if order is None else order.clone()
    lanes[lanes >= length] = -1
    if padding is not None:
        lanes[padding] = -1
    return lanes.view(-1, tile)
