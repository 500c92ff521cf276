"""Softmax over the pairs of a pattern."""

from regard.attention.sparse._base import PatternSoftmax, Sparse, masked_average
from regard.attention.sparse._globals import Globals, Tokens, View

__all__ = ["Globals", "PatternSoftmax", "Sparse", "Tokens", "View", "masked_average"]
