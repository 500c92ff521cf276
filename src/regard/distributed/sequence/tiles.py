"""Patterns: of the keys of other parts, only those that a pair of the pattern may reach are sent."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.core.attention import Attended, Attention
from regard.core.bias import ScoreBias
from regard.core.state import Slots, Tape
from regard.distributed.sequence.parts import Asked, Parts, carried
from regard.patterns import Pattern, Span

MadeBias = Callable[[tuple[int, int], tuple[int, int]], ScoreBias | None]
"""(lowest and highest distance, rows of 0 before and behind the queries) -> the bias"""


def pattern_of(attention: Attention) -> Pattern:
    """The declared pattern, causality included."""
    pattern = getattr(attention, "pattern", None)
    assert isinstance(pattern, Pattern)
    return pattern


def earlier(attention: Attention, start: int, stop: int) -> Tensor:
    """The slots before `start` that queries in [start, stop) may see, as the state that a call begins with has them."""
    pattern = pattern_of(attention)
    if "positions" not in attention.layout():
        return torch.arange(start - attention.kept_slots(start), start)
    slots = torch.arange(start)
    may = pattern.over(Span(start, stop - 1), Span(slots, slots, 0)).may
    return slots[may.expand(slots.shape)]


def around(attention: Attention, start: int, stop: int, total: int) -> Tensor:
    """The slots outside [start, stop) that lie within the distances of a pattern without causality."""
    low, high = pattern_of(attention).distances
    slots = torch.arange(max(start - high, 0), min(stop - low, total))
    return slots[(slots < start) | (slots >= stop)]


def behind_window(parts: Parts, attention: Attention, asked: Asked, bias: MadeBias) -> Attended:
    """Causal: the averages on a state that holds the earlier keys that the pattern lets this part's queries see."""
    q, k, v, key_mask, inputs = asked
    wanted = [earlier(attention, *parts.bounds[at : at + 2]) for at in range(parts.count)]
    masks = [] if key_mask is None else [key_mask]
    if key_mask is not None:  # as every state has it: what hidden keys hold, NaN too, is nobody's business
        k, v = (x.masked_fill(~key_mask[:, None, :, None], 0) for x in (k, v))
    k_before, v_before, *real = carried(parts, parts.plan(wanted), [k, v, *masks])
    slots = wanted[parts.rank]
    content = {"k": k_before, "v": v_before, **({"key_mask": real[0]} if real else {})}
    if "positions" in attention.layout():
        content["positions"] = slots.to(k.device)
    count = len(slots)
    state = Slots(Tape(content, count, count), stop=count, length=parts.start, spec_tag=attention.spec_tag)
    made = bias(attention.bias_distances(parts.length, parts.length, state), (0, 0))
    got = attention(q, k, v, key_mask=key_mask, inputs=inputs, bias=made, state=state)
    return got._replace(state=None)


def within_window(parts: Parts, attention: Attention, asked: Asked, bias: MadeBias) -> Attended:
    """Not causal, by distance alone: the averages of a call on this part and what lies around it within the distances.

    Queries that stand around it are 0, and what they see is left out.
    """
    wanted = [around(attention, parts.bounds[at], parts.bounds[at + 1], parts.total) for at in range(parts.count)]
    masks = [] if asked.key_mask is None else [asked.key_mask]
    own, slots = [asked.k, asked.v, *masks], wanted[parts.rank]
    before = int((slots < parts.start).sum())
    behind = len(slots) - before
    found = carried(parts, parts.plan(wanted), own)
    k, v, *real = (_between(x, mine, before) for x, mine in zip(found, own, strict=True))
    keys = k.shape[2]
    made = bias(attention.bias_distances(keys, keys), (before, behind))
    q = F.pad(asked.q, (0, 0, before, behind))
    got = attention(q, k, v, key_mask=real[0] if real else None, bias=made)
    return got._replace(values=got.values[:, :, before : keys - behind])


def _between(around: Tensor, own: Tensor, before: int) -> Tensor:
    axis = 2 if own.ndim == 4 else 1
    first, last = around.split([before, around.shape[axis] - before], axis)
    return torch.cat([first, own, last], axis)
