"""A softmax over keys that travel from process to process, of which each merges what it has seen."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.bias import ScoreBias
from regard.core import Attended, Attention, accumulation_dtype, merge
from regard.distributed.sequence.parts import Given, Parts
from regard.patterns import Pattern, Span

BIAS = ("curve", "query", "relative")
"""tensors of a bias by distance"""
Keys = tuple[Tensor, Tensor, Tensor | None]
"""keys, values and their mask"""


def ring(
    parts: Parts,
    attention: Attention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_mask: Tensor | None,
    inputs: Mapping[str, Tensor],
    bias: ScoreBias | None,
) -> Attended:
    """The averages of this part's queries over the keys of all parts: o = sum_r exp(z_r - Z) o_r, Z = logsumexp_r z_r.

    Every process attends to the keys that it holds, sends them on to the next one and goes on with those of the one
    before; the backward pass does the same, computes each hop again and sends its gradients to the keys' owner. Causal,
    keys never go back: a process sees those of earlier parts only. A process holds the keys of two parts at a time,
    and the inputs that belong to keys (a number for each, such as a log gate) of the whole sequence.

    Args:
        bias: for the distances of the whole sequence. The others: as `Attention.forward`, of this part.

    Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, arXiv:2310.01889, section 3.
    """
    of_keys, rest = {}, dict(inputs)
    for name, each in attention.info.inputs.items():
        if each.slots == "keys":
            x = rest.pop(name)
            if key_mask is not None:
                x = x.masked_fill(~key_mask[:, None, :, None], each.neutral)
            of_keys[name] = parts.whole(x, 2)
    hops = Hops(parts, attention, tuple(of_keys), tuple(rest), bias)
    of_bias = () if bias is None else tuple(x for x in (getattr(bias, name) for name in BIAS) if x is not None)
    mask = () if key_mask is None else (key_mask,)
    weights = tuple(x for x in attention.parameters() if x.requires_grad)
    values = _Ring.apply(hops, len(mask), q, k, v, *mask, *of_keys.values(), *rest.values(), *of_bias, *weights)
    return Attended(values.to(q.dtype))  # type: ignore[union-attr]


@dataclass
class Hops:
    """What a process computes with the keys of a part.

    of_keys, of_queries: names of the inputs of keys, whole, and of queries. bias: whose tensors are given anew.
    """

    parts: Parts
    attention: Attention
    of_keys: tuple[str, ...]
    of_queries: tuple[str, ...]
    bias: ScoreBias | None

    def __post_init__(self) -> None:
        self.bounds, self.rank, self.count = self.parts.bounds, self.parts.rank, self.parts.count
        self.causal = self.attention.heads.causal

    def source(self, hop: int) -> int:
        """Whose keys this process holds at a hop; below 0 where it holds none."""
        return self.rank - hop if self.causal else (self.rank - hop) % self.count

    def reader(self, hop: int) -> int:
        """Who holds this process's keys at a hop; `count` or more where nobody does."""
        return self.rank + hop if self.causal else (self.rank + hop) % self.count

    def seen(self, hop: int) -> bool:
        """Whether a query of this process may see a key of the hop's part."""
        source = self.source(hop)
        return source >= 0 and self._visible(self.rank, source)

    def read(self, hop: int) -> bool:
        """Whether the process that holds this one's keys at a hop may see one of them."""
        reader = self.reader(hop)
        return reader < self.count and self._visible(reader, self.rank)

    def _visible(self, reader: int, source: int) -> bool:
        pattern = getattr(self.attention, "pattern", None)
        if not isinstance(pattern, Pattern):
            return True
        i, j = (Span(self.bounds[at], self.bounds[at + 1] - 1) for at in (reader, source))
        return bool(pattern.over(i, j).may.any())

    def attended(self, hop: int, given: Sequence[Tensor], key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """(values, log-sum-exp) of the hop's part, from q, k, v, inputs and the tensors of the bias."""
        (q, k, v), rest = given[:3], list(given[3:])
        source = self.source(hop)
        first, offset = self.bounds[source], self.bounds[self.rank] - self.bounds[source]
        last = self.bounds[self.rank + 1] if self.causal else self.bounds[source + 1]
        inputs = {name: rest.pop(0)[:, :, first:last] for name in self.of_keys}
        inputs |= {name: rest.pop(0) for name in self.of_queries}
        bias, start = self.bias, offset
        if bias is not None:
            bias = replace(bias, **{name: rest.pop(0) for name in BIAS if getattr(bias, name) is not None})
        if not self.causal:  # slots count from the first query, and from the first key
            start, bias = 0, bias and replace(bias, high=bias.high - offset)
        here = self.causal and not hop
        got = self.attention(
            q,
            k,
            v,
            key_mask=key_mask,
            bias=bias,
            inputs=inputs,
            query_start=None if here else start,
            lse=True,
        )
        assert got.lse is not None
        return got.values, got.lse


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hops: Hops, masks: int, *tensors: Tensor) -> Tensor:
        parts, (q, k, v), rest = hops.parts, tensors[:3], tensors[3:]
        mask, rest = (rest[0] if masks else None), rest[masks:]
        ctx.hops, ctx.masks, ctx.again = hops, masks, Again(q)
        wide, found = accumulation_dtype(q.dtype), None
        for hop, (key, value, real) in travelling(hops, (k, v, mask)):
            if not hops.seen(hop):
                continue
            values, lse = hops.attended(hop, (q, key, value, *rest), real)
            part = values.to(wide), lse
            found = part if found is None else merge([found, part])
        assert found is not None or not parts.length
        values, lse = found or (q.new_empty(*q.shape[:3], v.shape[3], dtype=wide), q.new_empty(q.shape[:3], dtype=wide))
        ctx.save_for_backward(values, lse, *tensors)
        return values

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        values, lse, *tensors = ctx.saved_tensors
        hops, parts, masks = ctx.hops, ctx.hops.parts, ctx.masks
        (q, k, v), mask, rest = tensors[:3], (tensors[3] if masks else None), tensors[3 + masks :]
        own = [torch.zeros_like(x) for x in (q, *rest)]
        of_keys = [torch.zeros_like(k), torch.zeros_like(v)]
        with ctx.again.begin():
            for hop, (key, value, real) in travelling(hops, (k, v, mask)):
                sent: list[Given] = []
                if hops.seen(hop):
                    got = _hop_gradients(hops, hop, (q, key, value, *rest), real, values, lse, grad)
                    for total, part in zip(own, (got[0], *got[3:]), strict=True):
                        if part is not None:
                            total += part
                    back = [
                        torch.zeros_like(x) if g is None else g for x, g in zip((key, value), got[1:3], strict=True)
                    ]
                    if hop:
                        sent = [(hops.source(hop), x) for x in back]
                    else:
                        of_keys = [total + x for total, x in zip(of_keys, back, strict=True)]
                back = [x.new_empty(x.shape) for x in of_keys] if hop and hops.read(hop) else []
                parts.swap(sent, [(hops.reader(hop), x) for x in back]).wait()
                for total, x in zip(of_keys, back, strict=False):
                    total += x
        return None, None, own[0], *of_keys, *[None] * masks, *own[1:]


def _hop_gradients(
    hops: Hops,
    hop: int,
    given: tuple[Tensor, ...],
    key_mask: Tensor | None,
    values: Tensor,
    lse: Tensor,
    grad: Tensor,
) -> list[Tensor | None]:
    """The gradients of what a hop was given, weights of the mechanism last.

    Of o = sum_r w_r o_r, w_r = exp(z_r - Z): w_r g for o_r, and w_r g . (o_r - o) for z_r.
    """
    weights = [x for x in hops.attention.parameters() if x.requires_grad]
    content = given[: len(given) - len(weights)]
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in content] + weights
    with torch.enable_grad():
        part, z = hops.attended(hop, leaves, key_mask)
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
    """(hop, keys, values and their mask) of one part after the other; the next ones come while these are used."""
    parts, held = hops.parts, own
    for hop in range(hops.count):
        here, follows = hops.source(hop) >= 0, hop + 1 < hops.count
        sent: list[Given] = []
        received: list[Given] = []
        coming = held
        if follows and here and (not hops.causal or hops.rank + 1 < hops.count):
            sent = [((hops.rank + 1) % hops.count, x) for x in held if x is not None]
        if follows and hops.source(hop + 1) >= 0:
            source = hops.source(hop + 1)
            slots = hops.bounds[source + 1] - hops.bounds[source]
            mask = own[2]
            coming = _like(own[0], slots), _like(own[1], slots), None if mask is None else _like(mask, slots)
            received = [((hops.rank - 1) % hops.count, x) for x in coming if x is not None]
        swap = parts.swap(sent, received)
        if here:
            yield hop, held
        else:
            yield hop, (own[0][:, :, :0], own[1][:, :, :0], None)
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
