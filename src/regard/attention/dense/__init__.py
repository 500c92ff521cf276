"""Every query against every key that it may see, by other scores and normalisers."""

from regard.attention.dense._base import (
    Dense,
    Scaled,
    concatenated_pairs,
    distances,
    inner_products,
    masked_logits,
    random_weight,
    reference_softmax,
    reference_weights,
    remember,
)

__all__ = [
    "Dense",
    "Scaled",
    "concatenated_pairs",
    "distances",
    "inner_products",
    "masked_logits",
    "random_weight",
    "reference_softmax",
    "reference_weights",
    "remember",
]
