"""Weights phi(q_i) . phi(k_j), so that keys and values are summed once instead of once per query."""

from regard.attention.kernel._base import Kernel, ratio
from regard.attention.kernel._redraw import RandomKernel

__all__ = ["Kernel", "RandomKernel", "ratio"]
