"""The engine of bucketed attention: softmax over the keys that share a code with the query in some round.

Each round sorts queries and keys by (code, position) and cuts every run of equal codes into tiles of its own, so that
a token's place in its tiles depends on earlier tokens only, and a hidden key is an exact zero. One online softmax per
query runs through all tiles and rounds; a round skips pairs that an earlier round has counted. The backward pass
walks the same tiles and computes their weights again.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.routed._base import LOG2E, accumulate, exact, room, wide

HIDDEN = 1e29
"""what hides a pair, per unit by which it is out of reach"""
ABSENT = float(1 << 25)
"""the position of an empty place; positions and codes are exact floats below 2^24"""


class Rule(NamedTuple):
    """Which pairs count. Everything here is fixed by the options and shapes of a call."""

    causal: bool
    itself: bool
    """whether a query may see its own position"""
    back: int
    """codes c - back to c match the query code c"""
    duplicates: bool
    """whether a pair counts once per round in which it matches"""
    choices: int
    """codes are below this"""
    tile: int


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


def _tiles(rank: Tensor, row: Tensor, span: int, size: int, empty: int) -> Tiles:
    """Sort items by rank and cut runs of equal rank // span into tiles."""
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
    rows = row.new_full(((int(tiles.sum()) + 1) * size,), empty)
    rows[of * size + inside % size] = row[order]
    return Tiles(rank, of, (inside % size == 0).nonzero().flatten(), rows.view(-1, size))


class Tokens(NamedTuple):
    """Queries and keys as rows to gather from, each with one empty row at the end."""

    queries: Tensor
    """(rows, dim + 1 + rounds): scaled query, position, codes"""
    keys: Tensor
    """(rows, dim + value + 1 + rounds): key, value, position, codes"""
    query_codes: Tensor
    """(batch x kv_heads, group, queries, rounds)"""
    key_codes: Tensor
    """(batch x kv_heads, keys, rounds)"""
    asking: Tensor | None
    """(batch x kv_heads, queries): queries that want an answer"""
    kept: Tensor | None
    """(batch x kv_heads, keys): keys that are not masked"""


def _tokens(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_codes: Tensor,
    key_codes: Tensor,
    query_mask: Tensor | None,
    key_mask: Tensor | None,
    scale: float,
    rule: Rule,
) -> Tokens:
    batch, kv_heads, keys = k.shape[:3]
    dtype, group, queries = wide(q), q.shape[1] // k.shape[1], q.shape[2]
    past = keys - queries if rule.causal else 0

    def rows(parts: list[Tensor], codes: Tensor, first: int, nowhere: float) -> Tensor:
        at = torch.arange(first, first + codes.shape[2], device=q.device).to(dtype)[:, None]
        every = [x.to(dtype) for x in parts] + [at.expand(*codes.shape[:3], 1), codes.to(dtype)]
        x = F.pad(torch.cat(every, -1).flatten(0, 2), (0, 0, 0, 1))
        x[-1, -codes.shape[3] - 1] = nowhere
        return x

    return Tokens(
        rows([q.to(dtype) * (scale * LOG2E)], query_codes, past, -1.0),
        rows([k, v], key_codes, 0, ABSENT),
        query_codes.reshape(batch * kv_heads, group, queries, query_codes.shape[3]).long(),
        key_codes.flatten(0, 1).long(),
        None if query_mask is None else query_mask.repeat_interleave(kv_heads, 0),
        None if key_mask is None else key_mask.repeat_interleave(kv_heads, 0),
    )


def _size(tokens: Tokens, rule: Rule) -> int:
    """Queries in a tile: whole cache lines, since a product may round otherwise on unaligned rows; 1 while decoding."""
    _, group, queries, _ = tokens.query_codes.shape
    return group if queries == 1 else rule.tile


def _walk(tokens: Tokens, rule: Rule) -> Iterator[tuple[int, Tensor, list[Tensor]]]:
    """(round, rows of some tiles of queries, rows of the tiles of keys that each meets, one after the other).

    Every step has the same shapes, filled up with empty tiles: a product over more tiles may round otherwise, and how
    many there are depends on the future.
    """
    device = tokens.queries.device
    heads, group, queries, rounds = tokens.query_codes.shape
    keys = tokens.key_codes.shape[1]
    if not (queries and keys and heads):
        return
    head = torch.arange(heads, device=device)
    span = max(queries, keys)
    first = keys - queries if rule.causal else 0
    at = torch.arange(first, first + queries, device=device)
    number, size = heads * group * queries, _size(tokens, rule)
    together = max(1, min(room(tokens.keys) // (size * rule.tile), number))
    for which in range(rounds):
        query_code, key_code = tokens.query_codes[..., which], tokens.key_codes[..., which]
        # Position before head of the group: a place in a tile depends on the past alone.
        rank = (head[:, None, None] * rule.choices + query_code) * span + at
        rank = (rank * group + torch.arange(group, device=device)[:, None]).flatten()
        asking = None if tokens.asking is None else tokens.asking[:, None].expand(-1, group, -1)
        query_row = _rows(asking, number, device)
        asked = _tiles(rank[query_row], query_row, span * group, size, number)
        kept = tokens.kept
        if queries == 1 and not rule.back:  # decoding: only the keys in its buckets need sorting
            met = (query_code == key_code[:, None]).any(1)
            kept = met if kept is None else kept & met
        rank = ((head[:, None] * rule.choices + key_code) * span + torch.arange(keys, device=device)).flatten()
        key_row = _rows(kept, heads * keys, device)
        if not (len(query_row) and len(key_row)):
            continue
        found = _tiles(rank[key_row], key_row, span, rule.tile, heads * keys)
        start, count = _meeting(asked, found, span, group, rule)
        order = count.argsort(descending=True, stable=True)
        most = count[order[::together]].tolist()
        order = F.pad(order, (0, len(most) * together - len(order)), value=len(count))
        start, count = F.pad(start, (0, 1)), F.pad(count, (0, 1))
        nothing = len(found.rows) - 1
        for part, steps in enumerate(most):
            if not steps:
                break
            mine = order[part * together : (part + 1) * together]
            tiles = [torch.where(count[mine] > step, start[mine] + step, nothing) for step in range(steps)]
            yield which, asked.rows[mine].flatten(), [found.rows[x].flatten() for x in tiles]


def _rows(kept: Tensor | None, number: int, device: torch.device) -> Tensor:
    return torch.arange(number, device=device) if kept is None else kept.flatten().nonzero().flatten()


def _meeting(asked: Tiles, found: Tiles, span: int, group: int, rule: Rule) -> tuple[Tensor, Tensor]:
    """The first tile of keys that each tile of queries meets, and how many."""
    last = torch.cat([asked.first[1:], asked.first.new_tensor([len(asked.rank)])]) - 1
    run = asked.rank[asked.first] // (span * group)
    end = asked.rank[last] // group + 1 if rule.causal else (run + 1) * span
    low = torch.searchsorted(found.rank, (run - rule.back) * span)
    high = torch.searchsorted(found.rank, end)
    start = found.of[low.clamp(max=len(found.of) - 1)]
    return start, torch.where(high > low, found.of[(high - 1).clamp(min=0)] - start + 1, 0)


class Buffers:
    """Logits of one step, computed in place."""

    def __init__(self, tokens: Tokens, dim: int, rule: Rule) -> None:
        self.dim, self.rule = dim, rule
        self.rounds = tokens.key_codes.shape[2]
        self.logits = self.hidden = self.near = tokens.queries.new_empty(0)

    def scores(self, query: Tensor, key: Tensor, which: int) -> Tensor:
        """Logits (tiles, queries, keys) in base 2, below -HIDDEN / 2 where a pair does not count."""
        rule, shape = self.rule, (len(query), query.shape[1], key.shape[1])
        if self.logits.shape != shape:
            self.logits, self.hidden, self.near = (query.new_empty(shape) for _ in range(3))
        logits, hidden = self.logits, self.hidden
        torch.bmm(query[..., : self.dim], key[..., : self.dim].mT, out=logits)
        # Arithmetic, not comparisons: those and masked_fill_ are ten times slower on a CPU.
        place = -self.rounds - 1
        torch.sub(key[..., place, None].mT, query[..., place, None], out=hidden)
        if rule.causal:
            hidden.add_(0 if rule.itself else 1).clamp_(min=0)
        else:
            empty = (key[..., place, None].mT == ABSENT).to(logits.dtype)
            if rule.itself:
                hidden.copy_(empty.expand_as(hidden))
            else:
                hidden.abs_().clamp_(max=1).neg_().add_(1 + empty)
        for earlier in range(0 if rule.duplicates else which):
            other = place + 1 + earlier
            near = torch.sub(key[..., other, None].mT, query[..., other, None], out=self.near)
            near.add_(rule.back / 2).abs_().sub_(rule.back / 2).clamp_(max=1)  # 0 where the codes match
            hidden.sub_(near).add_(1)
        return logits.sub_(hidden, alpha=HIDDEN)


@torch.library.custom_op("regard::bucketed", mutates_args=())
def bucketed_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_codes: Tensor,
    key_codes: Tensor,
    query_mask: Tensor | None,
    key_mask: Tensor | None,
    scale: float,
    causal: bool,
    itself: bool,
    back: int,
    duplicates: bool,
    choices: int,
    tile: int,
) -> tuple[Tensor, Tensor]:
    """softmax(scale q k^T) v over the pairs that match in some round.

    Args:
        q, k, v: (batch, heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, value).
        query_codes, key_codes: (batch, heads or kv_heads, queries or keys, rounds), in [0, choices).
        query_mask: (batch, queries), True = wants an answer; the others get 0.
        key_mask: (batch, keys), True = keep.
        scale: of the logits.
        causal, itself, back, duplicates, choices, tile: see `Rule`.

    Returns:
        values, and the log-sum-exp of each query in base 2; 0 and -inf where no key matches. At least float32.
    """
    rule = Rule(causal, itself, back, duplicates, choices, tile)
    dim, value = q.shape[3], v.shape[3]
    with exact(q):
        tokens = _tokens(q, k, v, query_codes, key_codes, query_mask, key_mask, scale, rule)
        buffers = Buffers(tokens, dim, rule)
        count = len(tokens.queries)
        top = tokens.queries.new_full((count, 1), float("-inf"))
        total, sums = tokens.queries.new_zeros(count, 1), tokens.queries.new_zeros(count, value)
        size = _size(tokens, rule)
        for which, at, meets in _walk(tokens, rule):
            query = tokens.queries[at].view(-1, size, tokens.queries.shape[1])
            high, mass, mean = (x[at].view(-1, size, x.shape[1]) for x in (top, total, sums))
            for rows in meets:
                key = tokens.keys[rows].view(-1, tile, tokens.keys.shape[1])
                odds = buffers.scores(query, key, which)
                higher = torch.maximum(high, odds.amax(-1, keepdim=True))
                fade = torch.exp2(high - higher)
                odds.sub_(higher).exp2_()
                mass.mul_(fade).add_(odds.sum(-1, keepdim=True))
                mean.mul_(fade).baddbmm_(odds, key[..., dim : dim + value])
                high = higher
            for x, new in ((top, high), (total, mass), (sums, mean)):
                x.index_copy_(0, at, new.flatten(0, 1))
        seen = top > -HIDDEN / 2
        values = torch.where(seen, sums / total, 0.0)[:-1].view(*q.shape[:3], value)
        lse = torch.where(seen, top + total.log2(), float("-inf"))[:-1].view(q.shape[:3])
    return values, lse


@bucketed_op.register_fake
def _(q, k, v, *others):  # type: ignore[no-untyped-def]
    dtype = wide(q)
    return q.new_empty((*q.shape[:3], v.shape[3]), dtype=dtype), q.new_empty(q.shape[:3], dtype=dtype)


@torch.library.custom_op("regard::bucketed_backward", mutates_args=())
def bucketed_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_codes: Tensor,
    key_codes: Tensor,
    query_mask: Tensor | None,
    key_mask: Tensor | None,
    values: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    itself: bool,
    back: int,
    duplicates: bool,
    choices: int,
    tile: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    rule = Rule(causal, itself, back, duplicates, choices, tile)
    dim, value = q.shape[3], v.shape[3]
    with exact(q):
        tokens = _tokens(q, k, v, query_codes, key_codes, query_mask, key_mask, scale, rule)
        buffers = Buffers(tokens, dim, rule)
        # What each query brings: its gradient, the mean gradient of its weights, its log-sum-exp (inf: no weights).
        mean = (grad * values).sum(-1, keepdim=True)
        norm = torch.where(lse == float("-inf"), float("inf"), lse)[..., None]
        brings = F.pad(torch.cat([grad.to(values.dtype), mean, norm], -1).flatten(0, 2), (0, 0, 0, 1))
        brings[-1, -1] = float("inf")
        dq = torch.zeros_like(tokens.queries[:, :dim])
        dk, dv = (torch.zeros_like(tokens.keys[:, :width]) for width in (dim, value))
        size = _size(tokens, rule)
        slope = q.new_empty(0)
        for which, at, meets in _walk(tokens, rule):
            query = tokens.queries[at].view(-1, size, tokens.queries.shape[1])
            brought = brings[at].view(-1, size, value + 2)
            out, mean, norm = brought[..., :value], brought[..., value : value + 1], brought[..., value + 1 :]
            change = torch.zeros_like(query[..., :dim])
            for rows in meets:
                key = tokens.keys[rows].view(-1, tile, tokens.keys.shape[1])
                weights = buffers.scores(query, key, which).sub_(norm).exp2_()
                accumulate(dv, rows, torch.bmm(weights.mT, out).flatten(0, 1))
                slope = torch.empty_like(weights) if slope.shape != weights.shape else slope
                torch.bmm(out, key[..., dim : dim + value].mT, out=slope)
                slope.sub_(mean).mul_(weights)
                change.baddbmm_(slope, key[..., :dim])
                accumulate(dk, rows, torch.bmm(slope.mT, query[..., :dim]).flatten(0, 1))
            accumulate(dq, at, change.flatten(0, 1))
        dq.mul_(scale)
        dk.div_(LOG2E)  # queries were scaled by scale x log2(e)
    return tuple(x[:-1].view(like.shape).to(like.dtype) for x, like in ((dq, q), (dk, k), (dv, v)))  # type: ignore[return-value]


@bucketed_backward.register_fake
def _(grad, q, k, v, *others):  # type: ignore[no-untyped-def]
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.options = inputs[7:]


def _backward(ctx, grad: Tensor, _: Tensor):  # type: ignore[no-untyped-def]
    return (*bucketed_backward(grad, *ctx.saved_tensors, *ctx.options), *([None] * 11))


bucketed_op.register_autograd(_backward, setup_context=_setup)
