"""Attention mechanisms by family: one file, one mechanism, one name."""
