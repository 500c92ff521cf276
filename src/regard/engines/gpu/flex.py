"""Attention over a pattern by torch's FlexAttention.

A pattern's rule becomes the `mask_mod`, a bias by distance a lookup in the `score_mod`, and the blocks come from the
same interval arithmetic that lays out our own tiles, so that nothing of queries x keys exists. On a GPU the call is
compiled. On a CPU FlexAttention runs eagerly, as a plain formula without a backward pass: good for tests alone.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch._inductor.exc import InductorError
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask, flex_attention

from regard.core.bias import ScoreBias
from regard.engines.tiles import explicit, tiled_attention
from regard.engines.tiles.layout import touched
from regard.engines.tiles.parts import natural
from regard.patterns import Pattern

BLOCK = 128
"""positions in a block: the least that FlexAttention takes by default"""
GRAPHS = 1 << 10
"""of a process, each for a pattern in a type and a mode; behind its own 8 torch would go on without a kernel"""
WITHOUT_KERNEL: set[str] = set()
"""texts of patterns that torch did not compile"""


def flexed(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys value"],
    pattern: Pattern,
    **given: Any,
) -> tuple[Float[Tensor, "batch heads queries value"], Float[Tensor, "batch heads queries"]]:
    """Softmax attention over the pairs of a pattern, as `tiled_attention` computes it, which also serves rules that
    torch does not compile.

    Args:
        q, k, v, pattern: as there.
        given: scale, query_positions, key_positions, key_mask, bias (a curve over distances) and dropout (None), as
            there.
    """
    if not q.shape[2] or not k.shape[2] or pattern.text in WITHOUT_KERNEL:
        return tiled_attention(q, k, v, pattern, **given)
    i = explicit(given["query_positions"], q.shape[2], q.device)
    j = explicit(given.get("key_positions", 0), k.shape[2], q.device)
    try:
        values, extra = _attention(q.device.type)(
            q,
            k,
            v,
            score_mod=_added(given.get("bias"), i, j),
            block_mask=block_mask(pattern, i, j, given.get("key_mask")),
            scale=given["scale"],
            enable_gqa=q.shape[1] != k.shape[1],
            return_aux=AuxRequest(lse=True),
        )
    except (Unsupported, InductorError):
        WITHOUT_KERNEL.add(pattern.text)
        return tiled_attention(q, k, v, pattern, **given)
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
        return _graph()(*operands, **options)


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
