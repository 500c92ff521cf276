"""Findings of small forms that a test must not take for caught."""

SILENT: dict[str, set[str]] = {
    "distance_aware": {"exact: distance-aware - the better other"},
    "eight_bits": {"3 bits: bits per byte lost", "3 bits: recall lost"},
    "entropy_over_length": {"growth / softmax's growth, sd 2: about constant"},
    "hybrid_recall": {"window and far field, far: accuracy - linear's"},
    "normalisation_and_recall": {"recall, with - without the denominator"},
    "post_softmax": {"random values: recall, with - without", "squared error, with / without"},
    "randomized_attention_bias": {"rfa: largest |z|"},
    "shared_proposals": {
        "random: error, LARA balance / Performer",
        "random: error, LARA full / balance, few landmarks",
        "trained: error, LARA full / balance, few landmarks",
    },
    "softmax_linear_crossover": {
        "linear: crossing of forward time / dim",
        "linear: crossing of forward + backward / dim",
        "linear, causal: crossing of forward + backward / dim",
    },
}
"""Findings that do not hold in the small form of the right thing either: that they do not hold says nothing"""
