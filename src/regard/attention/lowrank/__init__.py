"""Softmax over a few mixtures of the keys, instead of over the keys."""
