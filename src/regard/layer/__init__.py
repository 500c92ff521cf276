"""The layer around a mechanism: projections, positions, memory, and rows of their own for global tokens."""

from regard.head_mix import HeadMix
from regard.layer.attention_layer import AttentionLayer
from regard.layer.joined import Part, side_by_side
from regard.layer.outputs import LayerOutput, LayerValues, Prepared
from regard.layer.projections import GatedProjections, OffsetScale, Projections, linear

__all__ = [
    "AttentionLayer",
    "GatedProjections",
    "HeadMix",
    "LayerOutput",
    "LayerValues",
    "OffsetScale",
    "Part",
    "Prepared",
    "Projections",
    "linear",
    "side_by_side",
]
