"""Attention over the tiles of a pattern, or under an explicit mask."""

from regard.engines.tiles.attention import ONE_TILE_POSITIONS, explicit, gathered_attention, plain, tiled

__all__ = ["ONE_TILE_POSITIONS", "explicit", "gathered_attention", "plain", "tiled"]
