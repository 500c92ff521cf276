"""Every query against every key, a chunk of rows at a time."""

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
