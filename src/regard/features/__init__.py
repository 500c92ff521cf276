"""Feature maps phi of kernel attention, and the projections that random ones draw."""

from regard.features.maps import (
    FEATURE_MAPS,
    LOG2E,
    FeatureMap,
    arc_cosine_random,
    elu_plus_one,
    feature_map,
    fourier_random,
    hyperbolic_random,
    identity,
    positive_random,
    relu,
    relu_random,
    sigmoid,
    softmax_features,
    taylor,
    trigonometric,
)
from regard.features.projections import draw_projection

__all__ = [
    "FEATURE_MAPS",
    "LOG2E",
    "FeatureMap",
    "arc_cosine_random",
    "draw_projection",
    "elu_plus_one",
    "feature_map",
    "fourier_random",
    "hyperbolic_random",
    "identity",
    "positive_random",
    "relu",
    "relu_random",
    "sigmoid",
    "softmax_features",
    "taylor",
    "trigonometric",
]
