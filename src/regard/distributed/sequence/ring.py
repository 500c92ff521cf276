"""A softmax over keys that travel from process to process, of which each merges what it has seen."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.core.attention import Attended, Attention, accumulation_dtype, merge
from regard.core.bias import ScoreBias
from regard.distributed.sequence.balance import Blocks, balanced, contiguous, moved
from regard.distributed.sequence.parts import Asked, Given, Parts
from regard.patterns import Pattern, Span

BIAS = ("curve", "query", "relative")
"""tensors of a bias by distance"""
Keys = tuple[Tensor, Tensor, Tensor | None]
"""keys, values and their mask"""


def ring(parts: Parts, attention: Attention, asked: Asked, bias: ScoreBias | None) -> Attended:
    """The averages of this part's queries over the keys of all parts: o = sum_r exp(z_r - Z) o_r, Z = logsumexp_r z_r.

    Every process attends to the keys that it holds, sends them on to the next one and goes on with those of the one
    before; the backward pass does the same, computes each hop again and sends its gradients to the keys' owner. Causal,
    a later part would see more keys than an earlier one: processes swap halves of their parts first, so that all have
    as much to do (`balanced`), and swap the results back. A process holds the keys of two parts at a time, and the
    inputs that belong to keys (a number for each, such as a log gate) of the whole sequence.

    Args:
        bias: for the distances of the whole sequence.

    Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, arXiv:2310.01889, section 3.
    """
    q, k, v, key_mask, inputs = asked
    of_keys, rest = {}, dict(inputs)
    for name, each in attention.info.inputs.items():
        if each.slots == "keys":
            x = rest.pop(name)
            if key_mask is not None:
                x = x.masked_fill(~key_mask[:, None, :, None], each.neutral)
            of_keys[name] = parts.whole(x, 2)
    home, query = contiguous(parts.bounds), None if bias is None else bias.query
    blocks = balanced(parts.bounds) if attention.heads.causal and parts.count > 1 else home
    of_queries = [*rest.values(), *(() if query is None else (query,))]
    if blocks != home:
        q, k, v, *of_queries = moved(parts, home, blocks, [q, k, v, *of_queries], 2)
        if key_mask is not None:
            (key_mask,) = moved(parts, home, blocks, [key_mask], 1)
    if bias is not None and query is not None:
        bias = replace(bias, query=of_queries.pop())
    hops = Hops(parts, attention, blocks, tuple(of_keys), tuple(rest), bias)
    of_bias = () if bias is None else tuple(x for x in (getattr(bias, name) for name in BIAS) if x is not None)
    mask = () if key_mask is None else (key_mask,)
    weights = tuple(x for x in attention.parameters() if x.requires_grad)
    values: Tensor = _Ring.apply(hops, len(mask), q, k, v, *mask, *of_keys.values(), *of_queries, *of_bias, *weights)  # type: ignore[assignment]
    values = values.to(q.dtype)
    return Attended(values if blocks == home else moved(parts, blocks, home, [values], 2)[0])


class Pair(NamedTuple):
    """A block of queries and one of keys.

    number: of the block among those of this process. i, j: positions of queries and keys. at, of: where they are in the
    tensors of this process, and of the keys that it holds.
    """

    number: int
    i: range
    j: range
    at: slice
    of: slice


@dataclass
class Hops:
    """What a process computes with the keys of another.

    blocks: of all. of_keys, of_queries: names of the inputs of keys, whole, and of queries. bias: whose tensors are
    given anew.
    """

    parts: Parts
    attention: Attention
    blocks: Blocks
    of_keys: tuple[str, ...]
    of_queries: tuple[str, ...]
    bias: ScoreBias | None

    def __post_init__(self) -> None:
        self.rank, self.count, self.causal = self.parts.rank, self.parts.count, self.attention.heads.causal
        bias = [name for name in BIAS if self.bias is not None and getattr(self.bias, name) is not None]
        self.by_query = [False] * len(self.of_keys) + [True] * len(self.of_queries) + [name == "query" for name in bias]
        """of what is given behind q, k and v, whether it has a slot for each query"""

    def source(self, hop: int) -> int:
        """Whose keys this process holds at a hop."""
        return (self.rank - hop) % self.count

    def reader(self, hop: int) -> int:
        """Who holds this process's keys at a hop."""
        return (self.rank + hop) % self.count

    def pairs(self, reader: int, source: int) -> list[Pair]:
        """The blocks of a process's queries and of another's keys of which some query may see some key."""
        return [
            Pair(number, i, j, at, of)
            for number, (i, at) in enumerate(_placed(self.blocks[reader]))
            for j, of in _placed(self.blocks[source])
            if i and j and self._visible(i, j)
        ]

    def _visible(self, i: range, j: range) -> bool:
        if self.causal and j.start > i.start:
            return False
        pattern = getattr(self.attention, "pattern", None)
        if not isinstance(pattern, Pattern):
            return True
        return bool(pattern.over(*(Span(block.start, block.stop - 1) for block in (i, j))).may.any())

    def given(self, pair: Pair, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Of q, k, v, inputs and the tensors of the bias what a pair of blocks needs."""
        q, k, v, *rest = tensors
        cut = [x[:, :, pair.at] if mine else x for x, mine in zip(rest, self.by_query, strict=False)]
        return [q[:, :, pair.at], k[:, :, pair.of], v[:, :, pair.of], *cut, *rest[len(cut) :]]

    def attended(self, pair: Pair, given: Sequence[Tensor], key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """(values, log-sum-exp) of a pair of blocks, from what is `given`."""
        (q, k, v), rest = given[:3], list(given[3:])
        first, offset = pair.j.start, pair.i.start - pair.j.start
        last = pair.i.stop if self.causal else pair.j.stop
        inputs = {name: rest.pop(0)[:, :, first:last] for name in self.of_keys}
        inputs |= {name: rest.pop(0) for name in self.of_queries}
        bias, start = self.bias, offset
        if bias is not None:
            bias = replace(bias, **{name: rest.pop(0) for name in BIAS if getattr(bias, name) is not None})
        if not self.causal:  # slots count from the first query, and from the first key
            start, bias = 0, bias and replace(bias, high=bias.high - offset)
        here = self.causal and not offset
        got = self.attention(
            q,
            k,
            v,
            key_mask=None if key_mask is None else key_mask[:, pair.of],
            bias=bias,
            inputs=inputs,
            query_start=None if here else start,
            lse=True,
        )
        assert got.lse is not None
        return got.values, got.lse


def _placed(blocks: Sequence[range]) -> Iterator[tuple[range, slice]]:
    """Blocks, and where they are in the tensors of the process that has them."""
    first = 0
    for block in blocks:
        yield block, slice(first, first + len(block))
        first += len(block)


def _nothing(q: Tensor, v: Tensor, block: range, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(values, log-sum-exp) of queries that have seen no key."""
    shape = *q.shape[:2], len(block)
    return v.new_zeros(*shape, v.shape[3], dtype=dtype), q.new_full(shape, -torch.inf, dtype=dtype)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hops: Hops, masks: int, *tensors: Tensor) -> Tensor:
        (q, k, v), rest = tensors[:3], tensors[3:]
        mask, rest = (rest[0] if masks else None), rest[masks:]
        ctx.hops, ctx.masks, ctx.again = hops, masks, Again(q)
        wide = accumulation_dtype(q.dtype)
        found = [_nothing(q, v, block, wide) for block in hops.blocks[hops.rank]]
        for hop, (key, value, real) in travelling(hops, (k, v, mask)):
            for pair in hops.pairs(hops.rank, hops.source(hop)):
                values, lse = hops.attended(pair, hops.given(pair, (q, key, value, *rest)), real)
                found[pair.number] = merge([found[pair.number], (values.to(wide), lse)])
        values, lse = (torch.cat(each, 2) for each in zip(*found, strict=True))
        ctx.save_for_backward(values, lse, *tensors)
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        values, lse, *tensors = ctx.saved_tensors
        hops, masks = ctx.hops, ctx.masks
        (q, k, v), mask, rest = tensors[:3], (tensors[3] if masks else None), tensors[3 + masks :]
        own, of_keys = [torch.zeros_like(x) for x in (q, *rest)], [torch.zeros_like(k), torch.zeros_like(v)]
        with ctx.again.begin():
            for hop, (key, value, real) in travelling(hops, (k, v, mask)):
                pairs = hops.pairs(hops.rank, hops.source(hop))
                of_these = [torch.zeros_like(x) for x in (key, value)] if hop and pairs else of_keys
                for pair in pairs:
                    of = tuple(x[:, :, pair.at] for x in (values, lse, grad))
                    got = _pair_gradients(hops, pair, hops.given(pair, (q, key, value, *rest)), real, *of)
                    totals = hops.given(pair, (own[0], *of_these, *own[1:]))
                    for total, part in zip(totals, got, strict=True):
                        if part is not None:
                            total += part
                sent = [(hops.source(hop), x) for x in of_these] if hop and pairs else []
                read = hop and hops.pairs(hops.reader(hop), hops.rank)
                back = [x.new_empty(x.shape) for x in of_keys] if read else []
                hops.parts.swap(sent, [(hops.reader(hop), x) for x in back]).wait()
                for total, x in zip(of_keys, back, strict=False):
                    total += x
        return None, None, own[0], *of_keys, *[None] * masks, *own[1:]


def _pair_gradients(
    hops: Hops,
    pair: Pair,
    given: Sequence[Tensor],
    key_mask: Tensor | None,
    values: Tensor,
    lse: Tensor,
    grad: Tensor,
) -> list[Tensor | None]:
    """The gradients of what a pair of blocks was given, weights of the mechanism last.

    Of o = sum_r w_r o_r, w_r = exp(z_r - Z): w_r g for o_r, and w_r g . (o_r - o) for z_r.
    """
    weights = [x for x in hops.attention.parameters() if x.requires_grad]
    content = given[: len(given) - len(weights)]
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in content] + weights
    with torch.enable_grad():
        part, z = hops.attended(pair, leaves, key_mask)
    with torch.no_grad():
        share = torch.where(z.isneginf(), 0, torch.exp(z - torch.where(lse.isneginf(), 0, lse)))
        of_values = share[..., None] * grad
        seen = torch.where(share[..., None] == 0, 0, part - values)
        of_z = (of_values * seen).sum(-1)
    outputs = [(x, g.to(x.dtype)) for x, g in ((part, of_values), (z, of_z)) if x.requires_grad]
    wanted = [x for x in leaves if x.requires_grad]
    found = torch.autograd.grad([x for x, _ in outputs], wanted, [g for _, g in outputs], allow_unused=True)
    gradients = iter(found)
    return [next(gradients) if x.requires_grad else None for x in leaves]


def travelling(hops: Hops, own: Keys) -> Iterator[tuple[int, Keys]]:
    """(hop, keys, values and their mask) of one process after the other; the next ones come while these are used."""
    parts, held = hops.parts, own
    for hop in range(hops.count):
        sent: list[Given] = []
        received: list[Given] = []
        coming = held
        if hop + 1 < hops.count:
            slots, mask = sum(map(len, hops.blocks[hops.source(hop + 1)])), own[2]
            coming = _like(own[0], slots), _like(own[1], slots), None if mask is None else _like(mask, slots)
            sent = [((hops.rank + 1) % hops.count, x) for x in held if x is not None]
            received = [((hops.rank - 1) % hops.count, x) for x in coming if x is not None]
        swap = parts.swap(sent, received)
        yield hop, held
        swap.wait()
        held = coming


def _like(x: Tensor, slots: int) -> Tensor:
    axis = 2 if x.ndim == 4 else 1
    return x.new_empty([*x.shape[:axis], slots, *x.shape[axis + 1 :]])


class Again:
    """How a forward pass ran: the state of the random generators that dropout draws from, and autocast."""

    def __init__(self, like: Tensor) -> None:
        self.device, self.cast = like.device, torch.is_autocast_enabled(like.device.type)
        self.dtype = torch.get_autocast_dtype(like.device.type)
        self.random = torch.get_rng_state()
        self.of_device = torch.cuda.get_rng_state(like.device) if like.is_cuda else None

    def begin(self) -> AbstractContextManager[object]:
        """A block that runs like it did; the generators go on afterwards as if it had not been."""
        stack = ExitStack()
        stack.enter_context(torch.random.fork_rng([self.device] if self.of_device is not None else []))
        torch.set_rng_state(self.random)
        if self.of_device is not None:
            torch.cuda.set_rng_state(self.of_device, self.device)
        stack.enter_context(torch.autocast(self.device.type, self.dtype, enabled=self.cast))
        return stack
