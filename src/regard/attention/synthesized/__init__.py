"""Weights that no query-key product makes."""

from regard.attention.synthesized._base import Synthesizer

__all__ = ["Synthesizer"]
