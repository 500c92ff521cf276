"""States that go from part to part: added up where they are sums, otherwise one after the other."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.core.attention import Attended, Attention
from regard.core.state import State, Summary
from regard.distributed.sequence.parts import Asked, Parts
from regard.distributed.sequence.tiles import MadeBias

Fact = tuple[tuple[int, ...], torch.dtype]
"""what a tensor is that is sent"""


def summed(parts: Parts, attention: Attention, asked: Asked) -> Attended:
    """The averages of this part's queries on top of the states of the other parts, which all processes make at once.

    Causal: of the parts before. A process sends its state to each that needs it, and gets the gradients back.
    """
    q, k, v, key_mask, inputs = asked
    assert not inputs
    begun = attention.initial_state(len(k), device=k.device, dtype=k.dtype)
    assert isinstance(begun, Summary)
    alone = attention(q[:, :, :0], k, v, key_mask=key_mask, state=replace(begun, length=parts.start)).state
    assert isinstance(alone, Summary)
    names = list(alone.content)
    others = range(parts.rank) if attention.heads.causal else [at for at in range(parts.count) if at != parts.rank]
    found = _Others.apply(Joining(parts, attention, begun, tuple(others)), *alone.content.values())
    before = replace(begun, content=dict(zip(names, found, strict=True)), length=parts.start)  # type: ignore[arg-type]
    return attention(q, k, v, key_mask=key_mask, state=before)._replace(state=None)


class Joining:
    """One state of those of other parts.

    others: whose states these are; of the parts of a sequence, in order.
    """

    def __init__(self, parts: Parts, attention: Attention, begun: Summary, others: tuple[int, ...]) -> None:
        self.parts, self.attention, self.begun, self.others = parts, attention, begun, others
        causal = attention.heads.causal
        self.readers = [at for at in range(parts.count) if (at > parts.rank if causal else at != parts.rank)]

    def joined(self, contents: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """The content of the state that these add up to; of none, that before the first slot."""
        if not contents:
            return [x.clone() for x in self.begun.content.values()]
        states = [replace(self.begun, content=dict(zip(self.begun.content, each, strict=True))) for each in contents]
        return list(self.attention.added(states).tensors().values())


class _Others(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joining: Joining, *own: Tensor) -> tuple[Tensor, ...]:
        parts = joining.parts
        contents = [[x.new_empty(x.shape) for x in own] for _ in joining.others]
        parts.swap(
            [(to, x) for to in joining.readers for x in own],
            [(of, x) for of, each in zip(joining.others, contents, strict=True) for x in each],
        ).wait()
        ctx.joining, ctx.contents, ctx.like = joining, contents, [x.new_empty(x.shape) for x in own]
        found = tuple(joining.joined(contents))
        ctx.mark_non_differentiable(*[x for x in found if not x.is_floating_point()])
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        joining, parts = ctx.joining, ctx.joining.parts
        leaves = [[x.detach().requires_grad_(x.is_floating_point()) for x in each] for each in ctx.contents]
        flat = [x for each in leaves for x in each if x.requires_grad]
        back: list[Tensor] = []
        if flat:
            with torch.enable_grad():
                found = joining.joined(leaves)
            told = [(x, g) for x, g in zip(found, grads, strict=True) if x.requires_grad and g is not None]
            back = list(torch.autograd.grad([x for x, _ in told], flat, [g for _, g in told], materialize_grads=True))
        per = len(back) // max(len(joining.others), 1)
        floating = [x for x in ctx.like if x.is_floating_point()]
        coming = [[x.new_empty(x.shape) for x in floating] for _ in joining.readers]
        parts.swap(
            [(of, back[at * per + n]) for at, of in enumerate(joining.others) for n in range(per)],
            [(of, x) for of, each in zip(joining.readers, coming, strict=True) for x in each],
        ).wait()
        totals = iter([sum((each[n] for each in coming), torch.zeros_like(x)) for n, x in enumerate(floating)])
        return None, *[next(totals) if x.is_floating_point() else None for x in ctx.like]


def passed(parts: Parts, attention: Attention, asked: Asked, bias: MadeBias) -> Attended:
    """The averages of this part's queries on the state that the process before left, which goes on to the next one.

    A process waits for the one before, and goes on with the next layer while the one behind it works: with many layers
    they are seldom idle. Gradients of the state go the same way back.
    """
    q, k, v, key_mask, inputs = asked
    begun = attention.initial_state(len(k), device=k.device, dtype=k.dtype)
    state = received(parts, begun, (q, k, v, *inputs.values(), *attention.parameters())) if parts.rank else begun
    made = bias(attention.bias_distances(parts.length, parts.length, state), (0, 0))
    got = attention(q, k, v, key_mask=key_mask, inputs=inputs, bias=made, state=state)
    assert got.state is not None
    values = sent(parts, got.state, got.values) if parts.rank + 1 < parts.count else got.values
    return got._replace(values=values, state=None)


def received(parts: Parts, begun: State, beside: Sequence[Tensor]) -> State:
    """The state of the process before.

    Args:
        beside: what the call that goes on with it is given. None of it leads to the state, whose gradient must be sent
            back all the same, wherever that of anything here is asked for: as the process before asks for it.
    """
    facts: dict[str, Fact] = parts.hear(parts.rank - 1)
    found = _Received.apply(parts, list(facts.values()), *beside)
    tensors = dict(zip(facts, found, strict=True))  # type: ignore[arg-type]
    return begun.load({**tensors, "length": torch.tensor(parts.start)})


def sent(parts: Parts, state: State, values: Tensor) -> Tensor:
    """The values, and the state to the next process; the gradient of the values waits for that of the state."""
    tensors = state.tensors()
    parts.tell(parts.rank + 1, {name: (tuple(x.shape), x.dtype) for name, x in tensors.items()})
    return _Sent.apply(parts, values, *tensors.values())  # type: ignore[return-value]


class _Received(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Parts, facts: Sequence[Fact], *beside: Tensor) -> tuple[Tensor, ...]:
        found = tuple(torch.empty(shape, dtype=dtype, device=beside[0].device) for shape, dtype in facts)
        parts.swap([], [(parts.rank - 1, x) for x in found]).wait()
        ctx.parts, ctx.floating, ctx.beside = parts, [x.is_floating_point() for x in found], len(beside)
        ctx.mark_non_differentiable(*[x for x in found if not x.is_floating_point()])
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:  # type: ignore[override]
        back = [grad for floats, grad in zip(ctx.floating, grads, strict=True) if floats and grad is not None]
        ctx.parts.swap([(ctx.parts.rank - 1, x) for x in back], []).wait()
        return None, None, *[None] * ctx.beside


class _Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Parts, values: Tensor, *tensors: Tensor) -> Tensor:
        parts.swap([(parts.rank + 1, x) for x in tensors], []).wait()
        ctx.parts, ctx.like = parts, [(x.shape, x.dtype, x.device) for x in tensors]
        return values.view_as(values)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grads = [
            torch.empty(shape, dtype=dtype, device=device) if dtype.is_floating_point else None
            for shape, dtype, device in ctx.like
        ]
        ctx.parts.swap([], [(ctx.parts.rank + 1, x) for x in grads if x is not None]).wait()
        return None, grad, *grads
