"""Attention over the tiles of a pattern, or under an explicit mask."""

from regard.engines.tiles.attention import (
    ONE_TILE_POSITIONS,
    explicit,
    gathered_attention,
    masked_attention,
    tiled_attention,
)
from regard.engines.tiles.decay import CUT, pair_sums

__all__ = [
    "CUT",
    "ONE_TILE_POSITIONS",
    "explicit",
    "gathered_attention",
    "masked_attention",
    "pair_sums",
    "tiled_attention",
]
