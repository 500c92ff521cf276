"""Softmax over the pairs of a pattern."""

from regard.attention.sparse._base import Sparse, masked_average
from regard.attention.sparse._globals import Globals, Tokens, View

__all__ = ["Globals", "Sparse", "Tokens", "View", "masked_average"]
