"""Every query against every key, a chunk of rows at a time."""

from regard.engines.dense.chunks import Rule, chunked, publish, softmax, visible_count
from regard.engines.dense.fused import average_once, bias_logits, dot_product, expand_heads, fused, logits_once, tiles

__all__ = [
    "Rule",
    "average_once",
    "bias_logits",
    "chunked",
    "dot_product",
    "expand_heads",
    "fused",
    "logits_once",
    "publish",
    "softmax",
    "tiles",
    "visible_count",
]
