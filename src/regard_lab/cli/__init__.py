"""Verbs of the laboratory, which `pip install 'regard[lab]'` brings."""

from regard_lab.cli._options import read

__all__ = ["read"]
