"""Every query against every key, a chunk of rows at a time."""

from regard.engines.dense.chunks import Rule, chunked, publish, softmax, visible_count

__all__ = ["Rule", "chunked", "publish", "softmax", "visible_count"]
