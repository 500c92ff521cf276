"""Feature maps phi of kernel attention, and the projections that random ones draw."""

from regard.features.maps import FEATURE_MAPS, LOG2E, FeatureMap, feature_map
from regard.features.norms import balanced, short, unit
from regard.features.projections import draw_projection

__all__ = ["FEATURE_MAPS", "LOG2E", "FeatureMap", "balanced", "draw_projection", "feature_map", "short", "unit"]
