"""Attention maps of a whole network on one text: what every head of every layer looks at, reduced to what a page holds.

`attention_maps` calls a network once and reduces each layer while it runs.
"""

from regard_lab.attention_maps.capture import Watched, watch
from regard_lab.attention_maps.maps import attention_maps
from regard_lab.attention_maps.reduction import LayerMaps, NoMaps, reduce

__all__ = ["LayerMaps", "NoMaps", "Watched", "attention_maps", "reduce", "watch"]
