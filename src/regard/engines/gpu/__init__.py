"""Engines that are made for a GPU; their names are values of `impl`."""
