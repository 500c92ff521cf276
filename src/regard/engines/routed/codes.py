"""The engine of attention to quantised keys: old keys through what each code has gathered, recent ones one by one.

Queries go block by block. Before a block, the keys that are no longer recent are added to the sums and counts of their
codes; then one softmax runs over the codes (log-count added to the logit, mean value) and the recent keys. The backward
pass adds up again, then walks the blocks in reverse with the gradient of the sums, which each key reads when its own
block has been passed.

Keys may be wider than codes. What is behind counts only while a key is recent: where it stands, for a bias by distance.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.precision import accumulation_dtype
from regard.core.state import Slots
from regard.engines.operator import Wanted, operator
from regard.engines.routed import LOG2E, Averages, accumulate, blank_averages, exact, room
from regard.features.waves import sinusoids


class Segment(NamedTuple):
    """One block of queries, as ranges of keys and queries of the call."""

    leaving: slice
    """keys that join their codes before it"""
    recent: slice
    queries: slice


def _segments(queries: int, keys: int, first: int, block: int) -> Iterator[Segment]:
    if not block:
        yield Segment(slice(0, keys), slice(keys, keys), slice(0, queries))
        return
    begin, gone = keys - queries, 0
    for at in range((first + begin) // block, -(-(first + keys) // block)):
        low, high = max((at - 1) * block - first, 0), min((at + 1) * block - first, keys)
        yield Segment(slice(gone, low), slice(low, high), slice(max(at * block - first, begin) - begin, high - begin))
        gone = low


def gather_codes(sums: Tensor, codes: Tensor, v: Tensor) -> None:
    """sums[codes] += [v, 1].

    Args:
        sums: (heads, num_codes + 1, value + 1); the last row takes masked keys.
        codes: (heads, keys).
        v: (heads, keys, value).
    """
    base = torch.arange(len(sums), device=sums.device)[:, None] * sums.shape[1]
    accumulate(sums.flatten(0, 1), (base + codes).flatten(), F.pad(v, (0, 1), value=1.0).flatten(0, 1))


def _read(gradient: Tensor, codes: Tensor) -> Tensor:
    """The row of each key's code."""
    return gradient.gather(1, codes[..., None].expand(-1, -1, gradient.shape[2]))


class Coded(NamedTuple):
    """softmax(q k^T) v over keys that are codes.

    The gradient of a key is that of its logits while it is recent; of later ones, none. Without blocks, where no key is
    recent, a key gets an equal part of the gradient of its code.
    """

    q: Tensor
    """(batch, heads, queries, dim), scaled; causal, it may be wider than a code, for recent keys alone"""
    k: Tensor
    """(batch, kv_heads, keys, dim), quantised; as wide as q"""
    v: Tensor
    """(batch, kv_heads, keys, value), 0 where masked"""
    codes: Tensor
    """int (batch, kv_heads, keys); num_codes where masked"""
    codebook: Tensor
    """(kv_heads, num_codes, dim)"""
    cache: Tensor
    """(batch, kv_heads, num_codes, value + 1): sums of values, and counts, of all keys before the first"""
    first: int
    """the slot of the first key, where a block begins"""
    block: int
    """length of a block, causal; 0: every query sees every key"""


class Part(NamedTuple):
    """Some heads of keys, with the queries that read them, in the dtype to accumulate in."""

    q: Tensor
    """(heads, group, queries, dim)"""
    k: Tensor
    v: Tensor
    codes: Tensor
    codebook: Tensor
    sums: Tensor
    """(heads, num_codes + 1, value + 1)"""


def _parts(x: Coded) -> Iterator[tuple[slice, Part, int]]:
    """(heads, their tensors, queries to take at a time), so that a buffer of logits fits its room."""
    q, k, v, codes, codebook, cache, _, block = x
    batch, kv_heads = k.shape[:2]
    group, longest = q.shape[1] // kv_heads, min(block or q.shape[2], q.shape[2])
    row = group * (codebook.shape[1] + min(2 * block, k.shape[2]))
    step = max(1, min(longest, room(q) // row))
    together = max(1, room(q) // (step * row))
    dtype = accumulation_dtype(q.dtype)
    for at in range(0, batch * kv_heads, together):
        rows = slice(at, min(at + together, batch * kv_heads))
        head = torch.arange(rows.start, rows.stop, device=q.device) % kv_heads
        yield (
            rows,
            Part(
                q.reshape(batch * kv_heads, group, *q.shape[2:])[rows].to(dtype),
                k.flatten(0, 1)[rows].to(dtype),
                v.flatten(0, 1)[rows].to(dtype),
                codes.flatten(0, 1)[rows].long(),
                codebook[head].to(dtype),
                F.pad(cache.flatten(0, 1)[rows].to(dtype), (0, 0, 0, 1)),
            ),
            step,
        )


class Block:
    """The keys that the queries of one segment see."""

    def __init__(self, part: Part, sums: Tensor, segment: Segment, past: int) -> None:
        self.segment, self.past, self.codebook = segment, past, part.codebook
        self.choices, self.width = part.codebook.shape[1:]
        count = sums[:, :-1, -1:]
        self.share = 1 / count.clamp(min=1)
        self.mean = sums[:, :-1, :-1] * self.share
        self.keys, self.values = part.k[:, segment.recent], part.v[:, segment.recent]
        # log 0 hides a code without keys; the code past the last hides a masked key.
        hidden = torch.where(part.codes[:, segment.recent] == self.choices, float("-inf"), 0.0).to(count.dtype)
        self.bias = torch.cat([count[..., 0].log2(), hidden], 1)[:, None]

    def tiles(self, part: Part, step: int) -> Iterator[tuple[slice, Tensor, int, Tensor]]:
        """(queries, their rows, how many recent keys they reach, their logits in base 2)."""
        low, high = self.segment.queries.start, self.segment.queries.stop
        for at in range(low, high, step):
            rows = slice(at, min(at + step, high))
            count, group = rows.stop - rows.start, part.q.shape[1]
            query = (part.q[:, :, rows] * LOG2E).flatten(1, 2)
            recent = self.segment.recent
            near = max(0, min(rows.stop + self.past, recent.stop) - recent.start)
            logits = query.new_empty(len(query), query.shape[1], self.choices + near)
            torch.bmm(query[..., : self.width], self.codebook.mT, out=logits[..., : self.choices])
            if near:
                torch.bmm(query, self.keys[:, :near].mT, out=logits[..., self.choices :])
                late = query.new_full((count, near), float("-inf")).triu_(rows.start + self.past - recent.start + 1)
                logits.view(-1, group, count, self.choices + near)[..., self.choices :] += late
            yield rows, query, near, logits.add_(self.bias[..., : self.choices + near])


def forward(x: Coded) -> Averages:
    """values, and the log-sum-exp of each query in base 2; 0 and -inf without keys. At least float32."""
    q, k, first, block = x.q, x.k, x.first, x.block
    with exact(q):
        out = blank_averages(x)
        heads = k.shape[0] * k.shape[1], q.shape[1] // k.shape[1]
        into = [y.view(*heads, *y.shape[2:]) for y in (out.values, out.lse[..., None])]
        for taken, part, step in _parts(x):
            for segment in _segments(q.shape[2], k.shape[2], first, block):
                gather_codes(part.sums, part.codes[:, segment.leaving], part.v[:, segment.leaving])
                seen = Block(part, part.sums, segment, k.shape[2] - q.shape[2])
                for rows, _, near, odds in seen.tiles(part, step):
                    top = odds.amax(-1, keepdim=True).clamp_(min=torch.finfo(odds.dtype).min)
                    odds.sub_(top).exp2_()
                    total = odds.sum(-1, keepdim=True)
                    mean = torch.bmm(odds[..., : seen.choices], seen.mean)
                    if near:
                        mean.baddbmm_(odds[..., seen.choices :], seen.values[:, :near])
                    mean.div_(torch.where(total == 0, 1.0, total))
                    for y, new in zip(into, (mean, top + total.log2()), strict=True):
                        y[taken, :, rows] = new.view(*y[taken, :, rows].shape)
    return out


def backward(x: Coded, out: Averages, of: Averages, _wanted: Wanted) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and cache."""
    q, k, v, *_, cache, first, block = x
    (values, lse), grad = out, of.values
    with exact(q):
        dq, dk, dv, dcache = (
            torch.zeros_like(y, dtype=accumulation_dtype(q.dtype), memory_format=torch.contiguous_format)
            for y in (q, k, v, cache)
        )
        group, width, past = q.shape[1] // k.shape[1], v.shape[3], k.shape[2] - q.shape[2]
        into = dq.view(k.shape[0] * k.shape[1], group, *dq.shape[2:])
        brings = torch.cat(
            [
                grad.to(values.dtype),
                (grad * values).sum(-1, keepdim=True),
                torch.where(lse == float("-inf"), float("inf"), lse)[..., None],
            ],
            -1,
        ).view(k.shape[0] * k.shape[1], group, q.shape[2], width + 2)
        for taken, part, step in _parts(x):
            to_k, to_v = dk.flatten(0, 1)[taken], dv.flatten(0, 1)[taken]
            walk: list[tuple[Segment, Tensor]] = []
            for segment in _segments(q.shape[2], k.shape[2], first, block):
                gather_codes(part.sums, part.codes[:, segment.leaving], part.v[:, segment.leaving])
                walk.append((segment, part.sums.clone()))
            late = torch.zeros_like(part.sums[..., :-1])  # the gradient of the sums
            for segment, sums in reversed(walk):
                seen = Block(part, sums, segment, past)
                recent, choices = segment.recent, seen.choices
                to_mean, to_code = torch.zeros_like(seen.mean), torch.zeros_like(part.codebook)
                for rows, query, near, weights in seen.tiles(part, step):
                    slopes, mean, norm = brings[taken, :, rows].flatten(1, 2).split([width, 1, 1], -1)
                    weights.sub_(norm).exp2_()
                    to_mean.baddbmm_(weights[..., :choices].mT, slopes)
                    slope = torch.empty_like(weights)
                    torch.bmm(slopes, seen.mean.mT, out=slope[..., :choices])
                    if near:
                        reached = slice(recent.start, recent.start + near)
                        to_v[:, reached].baddbmm_(weights[..., choices:].mT, slopes)
                        torch.bmm(slopes, seen.values[:, :near].mT, out=slope[..., choices:])
                    slope.sub_(mean).mul_(weights)
                    change = F.pad(torch.bmm(slope[..., :choices], seen.codebook), (0, query.shape[2] - seen.width))
                    if near:
                        change.baddbmm_(slope[..., choices:], seen.keys[:, :near])
                        to_k[:, reached].baddbmm_(slope[..., choices:].mT, query, alpha=1 / LOG2E)
                    if not block:
                        to_code.baddbmm_(slope[..., :choices].mT, query, alpha=1 / LOG2E)
                    into[taken, :, rows] = change.view(len(query), group, -1, change.shape[2])
                late[:, :-1] += to_mean * seen.share
                leaving = segment.leaving
                to_v[:, leaving] += _read(late, part.codes[:, leaving])
                if not block:
                    to_k[:, leaving] += _read(F.pad(to_code * seen.share, (0, 0, 0, 1)), part.codes[:, leaving])
            dcache.flatten(0, 1)[taken, :, :-1] = late[:, :-1]
    return dq, dk, dv, dcache


_average = operator(
    "coded", forward, backward, fake=blank_averages, wrt=("q", "k", "v", "cache"), keeps=("values", "lse")
)


def coded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    codes: Tensor,
    codebook: Tensor,
    block: int,
    state: Slots | None,
    distance: Tensor | None = None,
) -> tuple[Tensor, Slots | None]:
    """The values in the dtype of v, and the state behind these keys.

    A state holds, in slots, what `window` says, and `cache`: the sums of values, and counts, of all keys before them.

    Args:
        q, k, v, codes, codebook: see `Coded`; as wide as codes.
        block: length of a block, causal; 0: every query sees every key.
        state: None: there is no past.
        distance: causal: (batch, heads, queries, width), an even one. Its product with `sinusoids` of the distance, all
            sines before all cosines, is added to the logit of a recent key. None: nothing is.
    """
    if state is None:
        cache = k.new_zeros(*codebook.shape[:-1], v.shape[3] + 1).expand(len(k), -1, -1, -1)
        q, k = _placed(q, k, distance)
        return _average(Coded(q, k, v, codes, codebook, cache, 0, block)).values.to(v.dtype), None
    past, cache = state.length, state.steady["cache"]
    grown = state.append(k=k.to(v.dtype), v=v, codes=codes)
    recent = _recent(past, block)
    kept = {name: x[:, :, state.kept - recent :] for name, x in grown.view().items()}
    q, k = _placed(q, kept["k"], distance)
    values = _average(Coded(q, k, kept["v"], kept["codes"], codebook, cache, past - recent, block)).values
    leaving = recent + grown.length - past - _recent(grown.length, block)
    if leaving:
        sums = F.pad(cache.flatten(0, 1), (0, 0, 0, 1))
        left = kept["codes"][:, :, :leaving].flatten(0, 1).long(), kept["v"][:, :, :leaving].flatten(0, 1)
        gather_codes(sums, left[0], left[1].to(cache.dtype))
        cache = sums[:, :-1].view(cache.shape)
    return values.to(v.dtype), grown.drop(grown.length - past).with_steady(cache=cache)


def _placed(q: Tensor, k: Tensor, distance: Tensor | None) -> tuple[Tensor, Tensor]:
    """Queries and keys so much wider that q_i . k_j is more by distance_i . [sin w(i - j), cos w(i - j)].

    Sine and cosine of a difference are products of those of i and of j, so each is made once per slot, not per pair.
    """
    if distance is None:
        return q, k
    sin, cos = (x.to(q.dtype) for x in sinusoids(torch.arange(k.shape[2], device=k.device), distance.shape[3]))
    here = sin[k.shape[2] - q.shape[2] :], cos[k.shape[2] - q.shape[2] :]
    odd, even = distance.chunk(2, -1)
    turned = torch.cat([even * here[0] - odd * here[1], odd * here[0] + even * here[1]], -1)
    place = torch.cat([sin, cos], -1).expand(*k.shape[:3], -1)
    return torch.cat([q, turned], -1), torch.cat([k.to(q.dtype), place], -1)


def window(block: int) -> int:
    """Slots that a state keeps, so that it has the block in progress and the one before it at any length."""
    return 2 * block - 1


def _recent(length: int, block: int) -> int:
    """Slots that a next block would still read one by one: the block in progress and the one before it."""
    return min(length, block + length % block)
