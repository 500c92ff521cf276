"""The dense engine: scores, normaliser and average in chunks of queries, as one operator at any length.

Nothing of size queries x keys outlives a chunk, forward or backward: the backward pass computes each chunk again. An
operator takes no callable, so the formulas of a mechanism are published under a name, and the name is passed.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.core.attention import Call, accumulation_dtype
from regard.core.bias import ScoreBias
from regard.engines.operator import Wanted, operator

CHUNK_ELEMENTS = 1 << 18
"""numbers in the largest tensor of a chunk, 1 MiB in float32"""
DEVICE_CHUNK_ELEMENTS = 1 << 25
"""the same on a GPU, where many small chunks are many small kernels"""

LEAST_ROWS = 64
"""queries in a chunk, at least, however short the reach"""


class Rule(NamedTuple):
    """The formulas in which dense mechanisms differ, as pure functions of tensors.

    score: (queries, keys, *weights) -> logits (batch, heads, queries, keys). normalise: logits, -inf at keys that are
    not allowed -> weights; a row of -inf gives zeros. depth: numbers that `score` makes per pair. relative: `score` is
    called with (queries, keys, distances, *weights), where distances (queries, keys) holds query slot - key slot.
    average: of a relative rule, (weights of pairs, values, distances, *weights) -> averages (batch, heads, queries,
    value); None: weights @ values. reach: the largest distance at which a causal query sees a key, so that no chunk
    holds keys further back; None: any.
    """

    score: Callable[..., Tensor]
    normalise: Callable[[Tensor], Tensor]
    depth: int = 1
    relative: bool = False
    average: Callable[..., Tensor] | None = None
    reach: int | None = None


RULES: dict[str, Rule] = {}


def publish(name: str, rule: Rule) -> str:
    """Make a rule known to the operator. The name must determine the formulas, options included.

    Call it when a module is imported or a mechanism built: not while torch compiles, which delays side effects.
    """
    RULES[name] = rule
    return name


class _Process:
    """This process: what was copied inside of it holds the same one, what comes from a pickle another one."""

    def __deepcopy__(self, memo: object) -> "_Process":
        return self


HERE = _Process()
"""where `RULES` were published"""


def softmax(logits: Float[Tensor, "*rows keys"], nulls: float = 0.0) -> Float[Tensor, "*rows keys"]:
    """exp(z_j) / (nulls + sum_r exp(z_r)) over the last axis; -inf has weight 0, also where a whole row is -inf."""
    highest = logits.detach().amax(-1, keepdim=True)
    highest = highest.clamp(min=0.0) if nulls else torch.where(highest == float("-inf"), 0.0, highest)
    weights = torch.exp(logits - highest)
    total = weights.sum(-1, keepdim=True)
    total = total + nulls * torch.exp(-highest) if nulls else torch.where(total == 0, 1.0, total)
    return weights / total


def visible_count(logits: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows 1"]:
    """How many keys each query may see, for a `normalise`; at least 1, so that one may divide by it."""
    return (logits > float("-inf")).sum(-1, keepdim=True).clamp(min=1).to(logits.dtype)


def chunked(
    rule: str,
    q: Float[Tensor, "batch heads queries query_dim"],
    k: Float[Tensor, "batch heads keys key_dim"],
    v: Float[Tensor, "batch heads keys value"],
    call: Call,
    weights: Sequence[Tensor] = (),
    *,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads queries value"]:
    """Attention under a published rule, in memory of one chunk of queries x keys.

    Args:
        rule: what `publish` returned.
        q, k, v: as the rule's score takes them; k and v have the heads of q.
        call: its mask, bias and slots; causal queries are the last ones.
        weights: further arguments of the score (and of a rule's own average), which get gradients.
        dropout: probability of dropping a weight, drawn anew at each call.
    """
    bias = call.bias or ScoreBias()
    parts = bias.curve, bias.query, bias.relative, bias.table
    seed = torch.randint(2**62, ()) if dropout else None
    rest = rule, bias.high, call.causal, call.query_start, dropout
    return _average(Arguments(q, k, v, list(weights), *parts, call.key_mask, seed, *rest))


class Arguments(NamedTuple):
    """Of the operator."""

    q: Tensor
    k: Tensor
    v: Tensor
    weights: list[Tensor]
    curve: Tensor | None
    query: Tensor | None
    relative: Tensor | None
    table: Tensor | None
    key_mask: Tensor | None
    seed: Tensor | None
    rule: str
    high: int
    causal: bool
    first: int
    dropout: float


LEARN = ("q", "k", "v", "curve", "query", "relative", "table", "weights")
"""the arguments that get gradients"""

# How a chunk reads each differentiable argument: by its queries (axis 2), by the keys that they see (axis 2), by both
# (axes 2 and 3), or whole.
READS = {"q": "queries", "k": "keys", "v": "keys", "query": "queries", "table": "both"}


def _slice(name: str, x: Tensor, rows: slice, seen: slice) -> Tensor:
    match READS.get(name):
        case "queries":
            return x[:, :, rows]
        case "keys":
            return x[:, :, seen]
        case "both":
            return x[:, :, rows, seen]
        case _:
            return x


def _named(x: Arguments) -> dict[str, Tensor]:
    """The differentiable arguments that are there, in at least float32."""
    arguments = {name: getattr(x, name) for name in LEARN if name != "weights"}
    arguments.update((f"weight{at}", y) for at, y in enumerate(x.weights))
    wide = accumulation_dtype(x.v.dtype)
    return {name: y if y.dtype == torch.bool else y.to(wide) for name, y in arguments.items() if y is not None}


def _chunks(tensors: dict[str, Tensor], x: Arguments) -> Iterator[tuple[slice, slice]]:
    """(queries, the keys that the last of them sees) of each chunk."""
    batch, heads, queries = tensors["q"].shape[:3]
    keys, rule = tensors["k"].shape[2], RULES[x.rule]
    reach = keys if rule.reach is None else rule.reach
    elements = CHUNK_ELEMENTS if tensors["q"].device.type == "cpu" else DEVICE_CHUNK_ELEMENTS
    step = max(1, elements // max(1, batch * heads * min(keys, 2 * reach) * rule.depth))
    step = step if rule.reach is None else min(step, max(reach, LEAST_ROWS))
    for first in range(0, queries, step):
        last = min(first + step, queries)
        stop = min(x.first + last, keys) if x.causal else keys
        start = 0 if rule.reach is None else max(x.first + first - reach, 0)
        yield slice(first, last), slice(min(start, stop), stop)


def _attend(part: dict[str, Tensor], x: Arguments, rows: slice, seen: slice) -> Tensor:
    """The output of one chunk, differentiable in `part`."""
    rule = RULES[x.rule]
    at = torch.arange(rows.start, rows.stop, device=part["q"].device) + x.first
    slots = torch.arange(seen.start, seen.stop, device=part["q"].device)
    further = [part[name] for name in part if name.startswith("weight")]
    if rule.relative:
        further.insert(0, at[:, None] - slots)
    logits = rule.score(part["q"], part["k"], *further)
    parts = {name: part[name] for name in ("curve", "query", "relative", "table") if name in part}
    if parts:
        logits = logits + ScoreBias(high=x.high, **parts).logits(at, slots).to(logits.dtype)
    if x.causal:
        logits = logits.masked_fill(slots > at[:, None], float("-inf"))
    if x.key_mask is not None:
        logits = logits.masked_fill(~x.key_mask[:, None, None, seen], float("-inf"))
    weights = rule.normalise(logits)
    if x.seed is not None:
        # The mask depends on the first query of the chunk, so that the backward pass draws the same one.
        draw = torch.Generator(weights.device).manual_seed(int(x.seed) + rows.start)
        kept = torch.rand(weights.shape, generator=draw, device=weights.device) >= x.dropout
        weights = weights * kept / (1 - x.dropout)
    return weights @ part["v"] if rule.average is None else rule.average(weights, part["v"], *further)


def forward(x: Arguments) -> Tensor:
    """The values."""
    tensors, values = _named(x), _blank(x).zero_()
    if x.k.shape[2]:
        for rows, seen in _chunks(tensors, x):
            part = {name: _slice(name, y, rows, seen) for name, y in tensors.items()}
            values[:, :, rows] = _attend(part, x, rows, seen).to(x.v.dtype)
    return values


def _blank(x: Arguments) -> Tensor:
    return x.q.new_empty((*x.q.shape[:3], x.v.shape[-1]), dtype=x.v.dtype)


def backward(x: Arguments, _out: Tensor, of: Tensor, wanted: Wanted) -> list[Any]:
    """The gradients of `LEARN`."""
    tensors = _named(x)
    flags = {**wanted, **{f"weight{at}": flag for at, flag in enumerate(wanted["weights"])}}
    names = [name for name in tensors if flags[name]]
    grads = {name: torch.zeros_like(tensors[name]) for name in names}
    if x.k.shape[2]:
        for rows, seen in _chunks(tensors, x):
            part = {name: _slice(name, y, rows, seen) for name, y in tensors.items()}

            def chunk(*xs: Tensor, part: dict[str, Tensor] = part, rows: slice = rows, seen: slice = seen) -> Tensor:
                return _attend({**part, **dict(zip(names, xs, strict=True))}, x, rows, seen)

            # Autograd is off inside an operator; `vjp` records its own.
            pull = torch.func.vjp(chunk, *(part[name] for name in names))[1]
            for name, y in zip(names, pull(of[:, :, rows].to(tensors["v"].dtype)), strict=True):
                _slice(name, grads[name], rows, seen).add_(y)
    weights = [grads.get(f"weight{at}") for at in range(len(x.weights))]
    return [weights if name == "weights" else grads.get(name) for name in LEARN]


_average = operator("dense", forward, backward, fake=_blank, wrt=LEARN)
