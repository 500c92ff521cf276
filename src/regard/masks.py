"""Patterns, rules for the (query, key) pairs that attend: the public name of `regard.patterns`.

>>> import torch
>>> from regard.masks import causal, first, window
>>> (causal & (window(1) | first(1))).mask(torch.arange(4), torch.arange(4)).int()
tensor([[1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, 0, 1, 1]], dtype=torch.int32)
"""

from regard import patterns
from regard.patterns import *  # noqa: F403

__all__ = patterns.__all__
