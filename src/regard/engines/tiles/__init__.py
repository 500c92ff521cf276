"""Softmax over the pairs of a pattern, in their time and memory: tiles of 64 x 64 without a pair are not computed.

In: q (batch, heads, queries, dim), k (batch, kv_heads, keys, dim), v (batch, kv_heads, keys, value), the `Pattern` with
causality in it, positions of queries and keys (consecutive or with holes), key mask, bias (curve, query with relative,
or table), log gates of slots, dropout by position.
Out: (values, lse), both differentiable once; a query without keys has value 0 and lse -inf, so that parts over disjoint
keys can be merged by their lse.

- `tiled_attention`: the operator. It lays a pattern out once for its lengths and keeps the layout.
- `masked_attention`, `gathered_attention`: under an explicit mask, for few queries and for what no tile serves.
- `Dropout`: factors of weights by seed, batch row, head and positions, the same in every layout.

Promised: sums in float32 at least, in one order for every cut of a sequence: a later key changes no bit of a row.
"""

from regard.engines.tiles.attention import (
    ONE_TILE_POSITIONS,
    explicit,
    gathered_attention,
    masked_attention,
    tiled_attention,
)
from regard.engines.tiles.decay import CUT, pair_sums
from regard.engines.tiles.dropout import Dropout

__all__ = [
    "CUT",
    "ONE_TILE_POSITIONS",
    "Dropout",
    "explicit",
    "gathered_attention",
    "masked_attention",
    "pair_sums",
    "tiled_attention",
]
