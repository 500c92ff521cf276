"""Attention over a pattern by torch's FlexAttention, for `impl="flex"` of the sparse family.

A pattern's rule becomes the `mask_mod`, a bias by distance a lookup in the `score_mod`, and the blocks come from the
same interval arithmetic that lays out our own tiles, so that nothing of queries x keys exists. On a GPU the call is
compiled. On a CPU FlexAttention runs eagerly, as a plain formula without a backward pass: good for tests alone.
"""

import functools
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch._inductor.exc import InductorError
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask, flex_attention

from regard.core.bias import ScoreBias
from regard.core.errors import ConfigError, UnsupportedError
from regard.core.transforms import refuse_tangents
from regard.engines.tiles import Dropout, explicit
from regard.engines.tiles.layout import touched
from regard.engines.tiles.parts import natural
from regard.patterns import Pattern

BLOCK = 128
"""positions in a block: the least that FlexAttention takes by default"""
GRAPHS = 1 << 10
"""of a process, each for a pattern in a type and a mode; behind its own 8 torch would go on without a kernel"""


def flexed(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    pattern: Pattern,
    *,
    scale: float,
    query_positions: Int[Tensor, " queries"] | int,
    key_positions: Int[Tensor, " keys"] | int = 0,
    key_mask: Bool[Tensor, "batch keys"] | None = None,
    bias: ScoreBias | None = None,
    dropout: Dropout | None = None,
) -> tuple[Float[Tensor, "batch heads queries value"], Float[Tensor, "batch heads queries"]]:
    """Softmax attention over the pairs of a pattern, as `regard.engines.tiles.tiled_attention` computes it.

    Args:
        q, k, v: heads of keys and values may be fewer (grouped).
        pattern: which pairs attend, including causality; for all heads or for each.
        scale: of the logits.
        query_positions, key_positions: one for each, or the first of consecutive ones.
        key_mask: True = keep.
        bias: its `curve` is added to the logits.
        dropout: refused: FlexAttention modifies scores, of which the weights are made, and not the weights.

    Returns:
        (values, lse); a query without keys has value 0 and lse -inf.

    Raises:
        UnsupportedError: dropout; other parts of a bias; on a CPU, inputs that need a gradient; tangents; a rule that
            torch does not compile.
        ConfigError: a pattern per head for another number of heads.
    """
    if pattern.heads is not None and pattern.heads != q.shape[1]:
        raise ConfigError(f"the pattern is one of {pattern.heads} heads, the queries have {q.shape[1]}")
    if dropout is not None:
        raise UnsupportedError('impl="flex" drops no weights; impl="torch" does')
    if bias is not None and (bias.table is not None or bias.relative is not None):
        raise UnsupportedError(
            'impl="flex" adds a bias that is a curve over distances; bias.table and bias.query with bias.relative need '
            'impl="torch"'
        )
    learned = (q, k, v) if bias is None or bias.curve is None else (q, k, v, bias.curve)
    if q.device.type == "cpu" and torch.is_grad_enabled() and any(x.requires_grad for x in learned):
        raise UnsupportedError('impl="flex" has no backward pass on a CPU; impl="torch" has one')
    refuse_tangents("FlexAttention", learned)
    if not q.shape[2] or not k.shape[2]:
        return v.new_zeros(*q.shape[:3], v.shape[3]), q.new_full(q.shape[:3], float("-inf"))
    i, j = explicit(query_positions, q.shape[2], q.device), explicit(key_positions, k.shape[2], q.device)
    values, extra = _attention(q.device.type)(
        q,
        k,
        v,
        score_mod=_added(bias, i, j),
        block_mask=block_mask(pattern, i, j, key_mask),
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    assert extra.lse is not None
    return values, extra.lse


def _attention(device: str) -> Callable[..., tuple[Tensor, AuxOutput]]:
    if torch.compiler.is_compiling():
        return flex_attention  # type: ignore[return-value]
    return _eager if device == "cpu" else _compiled


@functools.cache
def _graph() -> Callable[..., tuple[Tensor, AuxOutput]]:
    return torch.compile(flex_attention, fullgraph=True)  # type: ignore[return-value]


def _compiled(*operands: Tensor, **options: object) -> tuple[Tensor, AuxOutput]:
    """FlexAttention as a kernel or not at all: what torch does not compile it computes from queries x keys logits."""
    with torch._dynamo.config.patch(recompile_limit=GRAPHS):
        try:
            return _graph()(*operands, **options)
        except (Unsupported, InductorError) as error:
            raise UnsupportedError(
                f'impl="flex": torch does not compile the rule of this pattern; impl="torch" takes any. {error}'
            ) from error


def _eager(*operands: Tensor, **options: object) -> tuple[Tensor, AuxOutput]:
    """FlexAttention as a formula. By this switch it does not trace the rule, which a user may write as they like."""
    switch = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    before = getattr(flex_module, switch)
    setattr(flex_module, switch, True)
    try:
        return flex_attention(*operands, **options)  # type: ignore[return-value, arg-type]
    finally:
        setattr(flex_module, switch, before)


def block_mask(
    pattern: Pattern,
    queries: Int[Tensor, " queries"],
    keys: Int[Tensor, " keys"],
    key_mask: Bool[Tensor, "batch keys"] | None = None,
) -> BlockMask:
    """The blocks of a pattern: those without pairs are left out, and full ones are computed without a mask.

    Args:
        pattern: for all heads or for each.
        queries, keys: positions.
        key_mask: True = keep; with it no block counts as full.
    """
    heads = [pattern.of(head) for head in range(pattern.heads or 1)]
    distinct = list(dict.fromkeys(heads))
    blocks = {one: _blocks(one, queries.cpu(), keys.cpu(), key_mask is None) for one in distinct}
    partial, full = (torch.stack([blocks[one][at] for one in heads])[None].to(queries.device) for at in (0, 1))
    which = torch.tensor([distinct.index(one) for one in heads], device=queries.device)
    for one in distinct:
        one.holds(queries[:1], keys[:1])  # tables of rules get to the device now: a kernel cannot move them

    def seen(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        i, j = queries[query], keys[key]
        held = distinct[0].holds(i, j)
        if len(distinct) > 1:
            held = held & (which[h] == 0)
            for at, one in enumerate(distinct[1:], 1):
                held = held | (one.holds(i, j) & (which[h] == at))
        return held if key_mask is None else held & key_mask[b, key]

    return BlockMask.from_kv_blocks(
        *_ordered(partial), *_ordered(full), BLOCK_SIZE=BLOCK, mask_mod=seen, seq_lengths=(len(queries), len(keys))
    )


def _blocks(
    pattern: Pattern, queries: Tensor, keys: Tensor, may_be_full: bool
) -> tuple[Bool[Tensor, "rows columns"], Bool[Tensor, "rows columns"]]:
    """The blocks that hold some pairs, and those that hold all of theirs."""
    q, k = natural(queries, BLOCK), natural(keys, BLOCK)
    _, row, column, full = touched(pattern, q, k)
    full = full & q.real.all(2)[0, row] & k.real.all(2)[0, column] & may_be_full
    full_blocks = torch.zeros(q.real.shape[1], k.real.shape[1], dtype=torch.bool)
    partial = full_blocks.clone()
    partial[row[~full], column[~full]], full_blocks[row[full], column[full]] = True, True
    return partial, full_blocks


def _ordered(blocks: Bool[Tensor, "1 heads rows columns"]) -> tuple[Int[Tensor, "..."], Int[Tensor, "..."]]:
    """How many blocks each row has, and which: the picked columns first."""
    picked = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), picked.to(torch.int32).contiguous()


def _added(bias: ScoreBias | None, i: Tensor, j: Tensor) -> Callable[..., Tensor] | None:
    """The `score_mod` of a bias by distance."""
    if bias is None or bias.curve is None:
        return None
    curve, high, last = bias.curve, bias.high, bias.curve.shape[1] - 1
    shared = curve.shape[0] == 1

    def added(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        del b
        column = high - (i[query] - j[key])
        logit = curve[torch.zeros_like(h) if shared else h, column.clamp(0, last)]
        return score + torch.where((column >= 0) & (column <= last), logit, 0)

    return added
