"""Attention over the tiles of a pattern: one operator with a hand-written backward, in buffers of about 1 MiB.

For each query tile the scores of its key tiles are computed, masked, exponentiated and summed (all in base 2, whose
exponential is the cheaper one), and forgotten; the backward computes them again from the log-sum-exp. Nothing of
queries x keys exists, and `torch.compile` sees one node whatever the length.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.core.bias import ScoreBias
from regard.core.errors import ConfigError
from regard.core.precision import accumulation_dtype
from regard.engines.kernels import forced_engine
from regard.engines.operator import Wanted, operator
from regard.engines.tiles.decay import Sight, faded, gate_gradient, level_tiles, pair_sums, to_nearest
from regard.engines.tiles.dropout import Dropout, labels
from regard.engines.tiles.operands import Operands, lowest
from regard.engines.tiles.passes import backward, forward
from regard.engines.tiles.plan import Plan, Positions, find_plan
from regard.patterns import Pattern
from regard.patterns.pattern import unwritten

ONE_TILE_POSITIONS = 256
"""up to so many queries and keys, one tile holds everything"""
GATHERED_KEYS = 1024
"""out of more keys than this, a single query gathers those that it sees"""


def tiled_attention(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    pattern: Pattern,
    *,
    scale: float | None = None,
    query_positions: Int[Tensor, " queries"] | int | None = None,
    key_positions: Int[Tensor, " keys"] | int = 0,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    bias: ScoreBias | None = None,
    log_gates: Float[Tensor, "batch heads slots"] | None = None,
    dropout: Dropout | None = None,
    whole: int | None = None,
) -> tuple[Float[Tensor, "batch heads queries value"], Float[Tensor, "batch heads queries"]]:
    """Softmax attention over the pairs of a pattern.

    Args:
        q, k, v: heads of keys and values may be fewer (grouped); keys and values under the mask must be finite.
        pattern: which pairs attend, including causality; for all heads or for each.
        scale: of the logits; None: 1 / sqrt(dim).
        query_positions: one per query, or the first of consecutive ones; None: the queries are the last of
            consecutive keys.
        key_positions: one per key, or the first of consecutive ones.
        key_mask: True = keep.
        bias: added to the logits. Its `table` needs a tensor of queries x keys here too.
        log_gates: at most 0, one for every slot from the first key to the last key or query; the logit of a pair gets
            the sum of those behind its key up to its query. -inf: nothing before is seen. Positions are consecutive,
            and no query sees a later key.
        dropout: which weights are dropped after the softmax, by the positions of queries and keys; the lse has all.
        whole: up to this many queries and keys, one tile holds everything; None: 256, and 0 where tiles are forced.

    Returns:
        (values, lse), both differentiable. A query without keys has value 0 and lse -inf. lse has the dtype of the
        arithmetic (float32 for 16-bit inputs).

    Raises:
        ConfigError: a pattern per head for another number of heads; log gates of positions with holes, or of a pattern
            that shows later keys.
    """
    if pattern.heads is not None and pattern.heads != q.shape[1]:  # not `in`, which finds no symbol of a compiler
        raise ConfigError(f"the pattern is one of {pattern.heads} heads, the queries have {q.shape[1]}")
    queries, keys = q.shape[2], k.shape[2]
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    if query_positions is None:
        last = key_positions[-1] + 1 if isinstance(key_positions, Tensor) else key_positions + keys
        offsets = torch.arange(queries, device=q.device) if isinstance(last, Tensor) else 0
        query_positions = last - queries + offsets
    ahead = 0
    if log_gates is not None:
        if isinstance(query_positions, Tensor) or isinstance(key_positions, Tensor) or pattern.distances[0] < 0:
            raise ConfigError("log gates need consecutive positions and a causal pattern")
        ahead = query_positions - key_positions
    if bias is not None and bias.table is not None:
        i = explicit(query_positions, queries, q.device)
        j = explicit(key_positions, keys, q.device)
        allowed = pattern.mask(i, j)
        if key_mask is not None:
            allowed = allowed & key_mask[:, None, None, :]
        sums = None if log_gates is None else pair_sums(log_gates, ahead, queries, keys)
        factors = None if dropout is None else dropout.factors(i[None], j[None], like=q)
        return masked_attention(q, k, v, allowed, scale=scale, bias=bias.logits(i, j), sums=sums, factors=factors)
    moved = 0
    if not pattern.anchored and isinstance(query_positions, int) and isinstance(key_positions, int):
        moved = key_positions  # distances alone: one layout at any offset
        query_positions, key_positions = query_positions - moved, 0
    if whole is None:
        whole = 0 if forced_engine() == "tiles" else ONE_TILE_POSITIONS
    dtype = accumulation_dtype(q.dtype)
    curve = query = relative = None
    if bias is not None and bias.curve is not None:
        curve = bias.curve.to(dtype).expand(q.shape[1], -1)
    if bias is not None and bias.query is not None and bias.relative is not None:
        query = bias.query.to(dtype).expand(*q.shape[:3], -1)
        relative = bias.relative.to(dtype).expand(q.shape[1], -1, -1)
    arguments = Arguments(
        q.to(dtype),
        k.to(dtype),
        v.to(dtype),
        key_mask,
        curve,
        query,
        relative,
        log_gates,
        query_positions if isinstance(query_positions, Tensor) else None,
        key_positions if isinstance(key_positions, Tensor) else None,
        None if dropout is None else dropout.seed,
        0 if isinstance(query_positions, Tensor) else query_positions,
        0 if isinstance(key_positions, Tensor) else key_positions,
        pattern.text,
        scale,
        0 if bias is None else bias.high,
        whole,
        0.0 if dropout is None else dropout.probability,
        moved,
    )
    values, lse = _average(arguments)
    if log_gates is not None:  # of the nearest keys, which the logits of the operator leave out
        sight = Sight(ahead, queries, keys, curve, 0 if bias is None else bias.high)
        if not sight.plain:
            lse = (lse + to_nearest(log_gates.detach(), sight)).to(dtype)
    return values.to(v.dtype), lse


class Arguments(NamedTuple):
    """Of the operator."""

    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Tensor | None
    curve: Tensor | None
    query: Tensor | None
    relative: Tensor | None
    log_gates: Tensor | None
    query_positions: Tensor | None
    key_positions: Tensor | None
    seed: Tensor | None
    query_start: int
    key_start: int
    rule: str
    scale: float
    high: int
    whole: int
    dropout: float
    moved: int
    """slots by which all positions were moved to the front"""

    @property
    def ahead(self) -> int:
        """Slots from the first key to the first query."""
        return self.query_start - self.key_start

    def plan(self) -> Plan:
        """How the call is laid out."""
        queries = Positions(self.query_start, self.q.shape[2], self.query_positions)
        keys = Positions(self.key_start, self.k.shape[2], self.key_positions)
        biased = self.curve is not None or self.relative is not None
        like = {"device": self.q.device, "dtype": self.q.dtype}
        return find_plan(self.rule, queries, keys, whole=self.whole, biased=biased, **like)

    def operands(self) -> Operands:
        """The operands that the passes read."""
        hidden = None
        if self.key_mask is not None:
            hidden = self.q.new_zeros(self.key_mask.shape).masked_fill_(~self.key_mask, -math.inf)[:, None, :, None]
        levels = None
        if self.log_gates is not None:
            sight = Sight(self.ahead, self.q.shape[2], self.k.shape[2], self.curve, self.high)
            levels = level_tiles(self.log_gates, sight)
        made = None
        if self.seed is not None:
            places = (
                (self.query_positions, self.query_start, self.q),
                (self.key_positions, self.key_start, self.k),
            )
            i, j = (
                explicit(start if x is None else x, of.shape[2], of.device).expand(len(of), -1) + self.moved
                for x, start, of in places
            )
            made = labels(int(self.seed), i, j, self.q.shape[1], self.dropout)
        return Operands(*self[:3], hidden, *self[4:7], levels, made, self.high, self.scale)


class Averages(NamedTuple):
    values: Tensor
    """(batch, heads, queries, value)"""
    lse: Tensor
    """(batch, heads, queries), log-sum-exp"""


def _blank(x: Arguments) -> Averages:
    return Averages(x.q.new_empty(*x.q.shape[:3], x.v.shape[3]), x.q.new_empty(x.q.shape[:3]))


def _forward(x: Arguments) -> Averages:
    return Averages(*forward(x.plan(), x.operands()))


def _backward(x: Arguments, out: Averages, of: Averages, wanted: Wanted) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v, curve, query, relative, log_gates."""
    of_values, of_lse = (torch.zeros_like(y) if slope is None else slope for y, slope in zip(out, of, strict=True))
    learns = wanted["curve"], wanted["query"] or wanted["relative"], wanted["log_gates"]
    grads = backward(x.plan(), x.operands(), *out, of_values, of_lse, *learns)
    queries, keys = x.q.shape[2], x.k.shape[2]
    lengths = queries, keys, keys, None, queries, None, queries, keys  # whole tiles end in padding
    *gradients, of_queries, of_keys = (
        y if n is None or y.ndim < 2 else y[:, :, :n].contiguous() for y, n in zip(grads, lengths, strict=True)
    )
    if x.log_gates is None or not wanted["log_gates"]:
        return *gradients, None
    return *gradients, gate_gradient(x.log_gates, x.ahead, of_queries, of_keys)


_average = operator(
    "tiles",
    _forward,
    _backward,
    fake=_blank,
    wrt=("q", "k", "v", "curve", "query", "relative", "log_gates"),
    of=("values", "lse"),
    keeps=("values", "lse"),
    holds=lambda x: unwritten(x.rule),  # what is made from a function must live until the backward pass
)


def masked_attention(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    allowed: Bool[Tensor, "*#pairs queries keys"] | None = None,
    *,
    scale: float,
    bias: Float[Tensor, "*#pairs queries keys"] | None = None,
    sums: Float[Tensor, "batch heads queries keys"] | None = None,
    factors: Float[Tensor, "batch heads queries keys"] | None = None,
) -> tuple[Float[Tensor, "batch heads queries value"], Float[Tensor, "batch heads queries"]]:
    """The same as `tiled_attention` from an explicit mask: for a few queries, or a bias that is a table already.

    Args:
        q, k, v: heads of keys and values may be fewer (grouped).
        allowed: True = keep, broadcast over (batch, heads); None: every pair.
        scale: of the logits.
        bias: added to the logits, broadcast over (batch, heads).
        sums: of the log gates of each pair, added too (see `pair_sums`).
        factors: what the weights are multiplied by after the softmax (see `Dropout.factors`); the lse has all weights.
    """
    dtype = accumulation_dtype(q.dtype)
    batch, heads, queries, dim = q.shape
    shape = (batch, k.shape[1], heads // k.shape[1] * queries)  # the heads that share keys, one after another
    scores = (q.to(dtype).reshape(*shape, dim) @ k.to(dtype).mT * scale).view(batch, heads, queries, k.shape[2])
    if bias is not None:
        scores = scores + bias.to(dtype)
    base = None
    if sums is not None:  # float32 keeps their differences, not the sums behind a key that lies far back
        seen = sums.detach() if allowed is None else sums.detach().masked_fill(~allowed, float("-inf"))
        seen = seen if bias is None else seen.masked_fill(bias.isneginf(), float("-inf"))
        base = seen.amax(-1, keepdim=True) if k.shape[2] else seen.sum(-1, keepdim=True)
        base = base.masked_fill(base.isneginf(), 0)
        scores = scores + (sums - base).to(dtype)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, float("-inf"))
    highest = scores.detach().amax(-1, keepdim=True).clamp_min(lowest(scores))
    weights = torch.exp(scores - highest if sums is None else faded(scores - highest))
    total = weights.sum(-1, keepdim=True)
    safe = torch.where(total == 0, 1.0, total)
    weights = weights / safe if factors is None else weights / safe * factors
    weights = weights.reshape(*shape, k.shape[2])
    values = (weights @ v.to(dtype)).reshape(batch, heads, queries, v.shape[3])
    lse = torch.log(safe) + highest
    lse = torch.where(total == 0, float("-inf"), lse if base is None else (lse + base).to(dtype))
    return values.to(v.dtype), lse.squeeze(-1)


def gathered_attention(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    allowed: Bool[Tensor, "*#pairs queries keys"],
    *,
    scale: float,
    bias: Float[Tensor, "*#pairs queries keys"] | None = None,
    factors: Float[Tensor, "batch heads queries keys"] | None = None,
) -> tuple[Float[Tensor, "batch heads queries value"], Float[Tensor, "batch heads queries"]]:
    """The same as `masked_attention`; a single query that sees few of many keys gathers these before."""
    if q.shape[2] == 1 and k.shape[2] > GATHERED_KEYS and bias is None and not torch.compiler.is_compiling():
        used = allowed.flatten(0, -2).any(0).nonzero().flatten()
        if len(used) <= k.shape[2] // 2:
            k, v, allowed = k.index_select(2, used), v.index_select(2, used), allowed[..., used]
            factors = None if factors is None else factors[..., used]
    return masked_attention(q, k, v, allowed, scale=scale, bias=bias, factors=factors)


def explicit(positions: Int[Tensor, " length"] | int, length: int, device: torch.device) -> Int[Tensor, " length"]:
    """One position for each of `length`, which may be given by the first of consecutive ones."""
    if isinstance(positions, Tensor):
        return positions.to(device)
    return torch.arange(positions, positions + length, device=device)
