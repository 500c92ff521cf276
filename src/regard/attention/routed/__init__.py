"""Each query meets the keys that discrete choices route it to: buckets, lists, codes."""

from regard.attention.routed._base import Routed

__all__ = ["Routed"]
