"""Averages over every visible key, a chunk of rows at a time: nothing of queries x keys exists beyond 2^20 pairs.

In: q (batch, heads, queries, dim), k (batch, kv_heads, keys, dim), v (batch, kv_heads, keys, value), and the `Call`:
key mask, bias, causality and the slot of the first query. Keys and values under the mask are 0.
Out: (batch, heads, queries, value) in v's dtype, differentiable once; a query without a visible key gives 0.

- `dot_product(q, k, v, call, scale)`: softmax(scale q k^T + bias) v, by torch's fused kernel, `tiles` or `chunked`,
  chosen by sizes, bias and dropout; `dot_product_with_nulls` with keys of logit 0 and value 0 besides.
- `chunked(rule, q, k, v, call, weights)`: the same for any `Rule`, a pair of formulas: logits of some queries and keys,
  and weights of a row of logits. A rule is published once under a name, so that one operator serves all.
- `gated_dot_product`: with a log gate behind every key. `average_once`, `logits_once`: one query, by plain torch.

Promised: sums in float32 at least; the same bits wherever a call is cut into rows; no row depends on a later key.
"""

from regard.engines.dense.chunks import HERE, Rule, chunked, publish, softmax, visible_count
from regard.engines.dense.functions import functional, imported, require_pairwise
from regard.engines.dense.fused import (
    average_once,
    bias_logits,
    dot_product,
    dot_product_with_nulls,
    expand_heads,
    fused,
    logits_once,
    tiles,
)
from regard.engines.dense.gated import gated_dot_product
from regard.engines.dense.rounding import (
    Blocks,
    append_codes,
    block_codes,
    codes,
    in_blocks,
    rounded,
    rounded_blocks,
    rounded_rows,
    whole_call,
)

__all__ = [
    "HERE",
    "Blocks",
    "Rule",
    "append_codes",
    "average_once",
    "bias_logits",
    "block_codes",
    "chunked",
    "codes",
    "dot_product",
    "dot_product_with_nulls",
    "expand_heads",
    "functional",
    "fused",
    "gated_dot_product",
    "imported",
    "in_blocks",
    "logits_once",
    "publish",
    "require_pairwise",
    "rounded",
    "rounded_blocks",
    "rounded_rows",
    "softmax",
    "tiles",
    "visible_count",
    "whole_call",
]
