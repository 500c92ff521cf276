"""Feature maps phi of kernel attention, the projections that random ones draw, and the sines of positions."""

from regard.features.maps import FEATURE_MAPS, LOG2E, FeatureMap, feature_map
from regard.features.norms import balanced, short, unit
from regard.features.projections import draw_projection
from regard.features.waves import sinusoids

__all__ = [
    "FEATURE_MAPS",
    "LOG2E",
    "FeatureMap",
    "balanced",
    "draw_projection",
    "feature_map",
    "short",
    "sinusoids",
    "unit",
]
